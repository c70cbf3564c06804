//! What the core is told: events first, and of each pod the newest status. Nothing here grows beyond the number of pods and a fixed
//! number of events, however slowly it is read.

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

/// How many events may wait: a kubelet's event broadcaster keeps as many.
const EVENTS: usize = 1000;

/// What a provider has to tell until the core reads it, for [`Changes::Push`](crate::Changes::Push).
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<PodEvent>,
    order: VecDeque<PodRef>,
    /// Of a pod without a status, that somebody should ask for it.
    latest: HashMap<Arc<str>, Option<Box<PodStatus>>>,
}

// === impl Outbox ===

impl Outbox {
    /// Tells what happened. Goes out before any status: the core derives events from statuses where the provider does not tell.
    pub fn event(&self, event: PodEvent) {
        let mut waiting = self.waiting.lock();
        if waiting.events.len() == EVENTS
            && let Some(lost) = waiting.events.pop_front()
        {
            debug!(pod = %lost.pod, reason = lost.reason, "too many events at once: one is dropped");
        }
        waiting.events.push_back(event);
        drop(waiting);
        self.filled.notify_one();
    }

    /// Tells a status, in place of one that nobody has read yet.
    pub fn status(&self, pod: &PodRef, status: PodStatus) {
        self.put(pod, Some(Box::new(status)));
    }

    /// Tells that the status of a pod should be asked for, in place of one that nobody has read yet.
    pub fn refresh(&self, pod: &PodRef) {
        self.put(pod, None);
    }

    fn put(&self, pod: &PodRef, status: Option<Box<PodStatus>>) {
        let mut waiting = self.waiting.lock();
        if waiting.latest.insert(Arc::clone(&pod.uid), status).is_none() {
            waiting.order.push_back(pod.clone());
        }
        drop(waiting);
        self.filled.notify_one();
    }

    /// Forgets what waits.
    pub fn clear(&self) {
        *self.waiting.lock() = Waiting::default();
    }

    fn pop(&self) -> Option<PodChange> {
        let mut waiting = self.waiting.lock();
        if let Some(event) = waiting.events.pop_front() {
            return Some(PodChange::Event(event));
        }
        let pod = waiting.order.pop_front()?;
        let status = waiting.latest.remove(&pod.uid)?;
        Some(match status {
            Some(status) => PodChange::Status(pod, status),
            None => PodChange::Refresh(pod),
        })
    }

    /// All that is told, from what waits now on.
    pub fn changes(self: &Arc<Self>) -> BoxStream<'static, PodChange> {
        stream::unfold(Arc::clone(self), |this| async move {
            loop {
                let filled = this.filled.notified();
                if let Some(change) = this.pop() {
                    drop(filled);
                    return Some((change, this));
                }
                filled.await;
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
        let told: Vec<PodChange> = outbox.changes().take(3).collect().await;
        assert!(matches!(&told[0], PodChange::Event(event) if event.reason == "Started"));
        assert_eq!(told[1], PodChange::Status(pods[0].clone(), Box::new(status("Running"))));
        assert_eq!(told[2], PodChange::Status(pods[1].clone(), Box::new(status("Pending"))));
    }

    #[tokio::test]
    async fn a_pod_is_asked_about_once_however_often_it_changed() {
        let outbox = Arc::new(Outbox::default());
        let pods = ["a", "b"].map(|name| PodRef::new("default", name, name));
        outbox.status(&pods[0], status("Pending"));
        outbox.refresh(&pods[0]);
        outbox.refresh(&pods[0]);
        outbox.refresh(&pods[1]);
        let told: Vec<PodChange> = outbox.changes().take(2).collect().await;
        assert_eq!(told, pods.map(PodChange::Refresh));
    }

    #[tokio::test]
    async fn events_that_nobody_reads_do_not_pile_up() {
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
        assert_eq!(outbox.waiting.lock().events.len(), EVENTS);
        assert_eq!(outbox.waiting.lock().events[0].reason, "5");
    }
}
