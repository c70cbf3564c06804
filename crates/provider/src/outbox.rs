//! A queue of changes for the core: events first, then the newest annotations, labels and status of each pod. It never holds more
//! than one status per pod, one value per key, and a fixed number of events, however slow the reader is.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    mem,
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
    /// The pods with changes, the longest waiting first.
    order: VecDeque<PodRef>,
    /// By UID.
    latest: HashMap<Arc<str>, Unread>,
}

/// The unread changes of a pod.
#[derive(Debug, Default)]
struct Unread {
    annotations: BTreeMap<String, Option<String>>,
    labels: BTreeMap<String, Option<String>>,
    status: Option<UnreadStatus>,
}

#[derive(Debug)]
enum UnreadStatus {
    /// The core reads the status.
    Refresh,
    Status(Box<PodStatus>),
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
        self.push(pod, |unread| unread.status = Some(UnreadStatus::Status(Box::new(status))));
    }

    /// Queues a request to read the status, replacing an unread status of the pod.
    pub fn refresh(&self, pod: &PodRef) {
        self.push(pod, |unread| unread.status = Some(UnreadStatus::Refresh));
    }

    /// Queues annotations, each replacing an unread value of its key; `None` removes the annotation from the pod.
    pub fn annotations(&self, pod: &PodRef, annotations: BTreeMap<String, Option<String>>) {
        if !annotations.is_empty() {
            self.push(pod, |unread| unread.annotations.extend(annotations));
        }
    }

    /// Queues labels in the same way.
    pub fn labels(&self, pod: &PodRef, labels: BTreeMap<String, Option<String>>) {
        if !labels.is_empty() {
            self.push(pod, |unread| unread.labels.extend(labels));
        }
    }

    fn push(&self, pod: &PodRef, change: impl FnOnce(&mut Unread)) {
        let mut queue = self.queue.lock();
        let Queue { order, latest, .. } = &mut *queue;
        change(latest.entry(Arc::clone(&pod.uid)).or_insert_with(|| {
            order.push_back(pod.clone());
            Unread::default()
        }));
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
        let pod = queue.order.front()?.clone();
        let unread = queue.latest.get_mut(&pod.uid)?;
        let change = unread.pop(&pod);
        if unread.is_empty() {
            queue.order.pop_front();
            queue.latest.remove(&pod.uid);
        }
        change
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

// === impl Unread ===

impl Unread {
    /// Takes a change. The status comes last: once it shows that the pod has ended, the core may remove the pod.
    fn pop(&mut self, pod: &PodRef) -> Option<PodChange> {
        let pod = pod.clone();
        if !self.annotations.is_empty() {
            return Some(PodChange::Annotations(pod, mem::take(&mut self.annotations)));
        }
        if !self.labels.is_empty() {
            return Some(PodChange::Labels(pod, mem::take(&mut self.labels)));
        }
        Some(match self.status.take()? {
            UnreadStatus::Refresh => PodChange::Refresh(pod),
            UnreadStatus::Status(status) => PodChange::Status(pod, status),
        })
    }

    fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty() && self.status.is_none()
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

    fn values(values: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
        values.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
    }

    #[tokio::test]
    async fn the_newest_value_of_each_key_is_delivered_before_the_status() {
        let outbox = Arc::new(Outbox::default());
        let pods = ["a", "b"].map(|name| PodRef::new("default", name, name));
        outbox.status(&pods[0], status("Failed"));
        outbox.annotations(
            &pods[0],
            values(&[("size", Some("2-4Gi")), ("price", Some("0.1")), ("group", None)]),
        );
        outbox.annotations(&pods[1], values(&[("size", Some("1-2Gi"))]));
        outbox.labels(&pods[0], values(&[("zone", Some("a"))]));
        outbox.annotations(&pods[0], values(&[("price", None), ("group", Some("g-1"))]));
        outbox.labels(&pods[0], values(&[("zone", Some("b"))]));
        let changes: Vec<PodChange> = outbox.changes().take(4).collect().await;
        let annotations = values(&[("group", Some("g-1")), ("price", None), ("size", Some("2-4Gi"))]);
        let expected = [
            PodChange::Annotations(pods[0].clone(), annotations),
            PodChange::Labels(pods[0].clone(), values(&[("zone", Some("b"))])),
            PodChange::Status(pods[0].clone(), Box::new(status("Failed"))),
            PodChange::Annotations(pods[1].clone(), values(&[("size", Some("1-2Gi"))])),
        ];
        assert_eq!(changes, expected);
        // Later values are news again, and nothing is delivered twice.
        outbox.labels(&pods[0], values(&[("zone", Some("c"))]));
        outbox.annotations(&pods[0], BTreeMap::new());
        outbox.refresh(&pods[1]);
        let changes: Vec<PodChange> = outbox.changes().take(2).collect().await;
        let label = PodChange::Labels(pods[0].clone(), values(&[("zone", Some("c"))]));
        assert_eq!(changes, [label, PodChange::Refresh(pods[1].clone())]);
        assert!(outbox.queue.lock().order.is_empty() && outbox.queue.lock().latest.is_empty());
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
