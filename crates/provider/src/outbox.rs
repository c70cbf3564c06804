//! A queue of changes for the core: events first, then the newest status of each pod. It never holds more than one status per pod
//! and a fixed number of events, however slow the reader is.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::debug;

use crate::{PodChange, PodEvent, PodRef};

/// The maximum number of queued events, as in a kubelet's event broadcaster.
const EVENTS: usize = 1000;

/// Queues the changes of a provider until the core reads them, for [`Changes::Push`](crate::Changes::Push).
#[derive(Debug, Default)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<PodEvent>,
    order: VecDeque<PodRef>,
    /// By UID; `None` makes the core read the status.
    latest: HashMap<Arc<str>, Option<Box<PodStatus>>>,
}

// === impl Outbox ===

impl Outbox {
    /// Queues an event. Events are delivered before statuses, because the core derives events from statuses if the provider sends none.
    pub fn event(&self, event: PodEvent) {
        let mut queue = self.queue.lock();
        if queue.events.len() == EVENTS
            && let Some(lost) = queue.events.pop_front()
        {
            debug!(pod = %lost.pod, reason = lost.reason, "dropped an event: the queue is full");
        }
        queue.events.push_back(event);
        drop(queue);
        self.changed.notify_one();
    }

    /// Queues a status, replacing an unread one of the pod.
    pub fn status(&self, pod: &PodRef, status: PodStatus) {
        self.push(pod, Some(Box::new(status)));
    }

    /// Queues a request to read the status, replacing an unread status of the pod.
    pub fn refresh(&self, pod: &PodRef) {
        self.push(pod, None);
    }

    fn push(&self, pod: &PodRef, status: Option<Box<PodStatus>>) {
        let mut queue = self.queue.lock();
        if queue.latest.insert(Arc::clone(&pod.uid), status).is_none() {
            queue.order.push_back(pod.clone());
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Discards everything that is queued.
    pub fn clear(&self) {
        *self.queue.lock() = Queue::default();
    }

    fn pop(&self) -> Option<PodChange> {
        let mut queue = self.queue.lock();
        if let Some(event) = queue.events.pop_front() {
            return Some(PodChange::Event(event));
        }
        let pod = queue.order.pop_front()?;
        let status = queue.latest.remove(&pod.uid)?;
        Some(match status {
            Some(status) => PodChange::Status(pod, status),
            None => PodChange::Refresh(pod),
        })
    }

    /// The queued changes, then all later ones.
    pub fn changes(self: &Arc<Self>) -> BoxStream<'static, PodChange> {
        stream::unfold(Arc::clone(self), |this| async move {
            loop {
                let changed = this.changed.notified();
                if let Some(change) = this.pop() {
                    drop(changed);
                    return Some((change, this));
                }
                changed.await;
            }
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;

    fn status(phase: &str) -> PodStatus {
        PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }
    }

    #[tokio::test]
    async fn a_slow_reader_gets_events_first_and_the_newest_status_of_each_pod() {
        let outbox = Arc::new(Outbox::default());
        let pods = ["a", "b"].map(|name| PodRef::new("default", name, name));
        outbox.status(&pods[0], status("Pending"));
        outbox.status(&pods[1], status("Pending"));
        outbox.status(&pods[0], status("Running"));
        outbox.event(PodEvent {
            pod: pods[0].clone(),
            container: None,
            kind: EventKind::Normal,
            reason: "Started".to_owned(),
            message: String::new(),
        });
        let changes: Vec<PodChange> = outbox.changes().take(3).collect().await;
        assert!(matches!(&changes[0], PodChange::Event(event) if event.reason == "Started"));
        assert_eq!(changes[1], PodChange::Status(pods[0].clone(), Box::new(status("Running"))));
        assert_eq!(changes[2], PodChange::Status(pods[1].clone(), Box::new(status("Pending"))));
    }

    #[tokio::test]
    async fn a_pod_is_refreshed_once_however_often_it_changed() {
        let outbox = Arc::new(Outbox::default());
        let pods = ["a", "b"].map(|name| PodRef::new("default", name, name));
        outbox.status(&pods[0], status("Pending"));
        outbox.refresh(&pods[0]);
        outbox.refresh(&pods[0]);
        outbox.refresh(&pods[1]);
        let changes: Vec<PodChange> = outbox.changes().take(2).collect().await;
        assert_eq!(changes, pods.map(PodChange::Refresh));
    }

    #[tokio::test]
    async fn unread_events_are_limited() {
        let outbox = Arc::new(Outbox::default());
        for number in 0..EVENTS + 5 {
            outbox.event(PodEvent {
                pod: PodRef::new("default", "a", "a"),
                container: None,
                kind: EventKind::Normal,
                reason: number.to_string(),
                message: String::new(),
            });
        }
        assert_eq!(outbox.queue.lock().events.len(), EVENTS);
        assert_eq!(outbox.queue.lock().events[0].reason, "5");
    }
}
