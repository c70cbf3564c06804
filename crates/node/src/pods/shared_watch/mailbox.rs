//! Events that wait for the controller of one node: never more than its pods, because an event of a pod replaces the one before.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;
use vk_provider::PodRef;

use crate::pods::watch::PodWatchEvent;

/// The queue of one node, and what wakes up its reader.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    queue: Mutex<CoalescingQueue>,
    pub(super) changed: Notify,
}

/// Events in a queue. A reader who takes them late gets fewer, and the same picture.
#[derive(Debug, Default)]
pub(super) struct CoalescingQueue {
    waiting: BTreeMap<u64, Item>,
    /// The position of a pod's event.
    positions: HashMap<Arc<str>, u64>,
    next: u64,
    /// The positions of the start and the end of a list.
    restarted: Option<u64>,
    listed: Option<u64>,
    /// The last audit. It comes last: the reader must know everything that came before it.
    audit: Option<PodWatchEvent>,
}

#[derive(Debug)]
enum Item {
    Restarted,
    Applied(Arc<str>, Arc<Pod>),
    Deleted(Arc<str>, Arc<Pod>),
    Listed,
}

// === impl Mailbox ===

impl Mailbox {
    pub(super) fn pop(&self) -> Option<PodWatchEvent> {
        self.queue.lock().pop()
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut CoalescingQueue)) {
        update(&mut self.queue.lock());
        self.changed.notify_one();
    }
}

// === impl CoalescingQueue ===

impl CoalescingQueue {
    /// A list begins. One that the reader has not taken to its end is as if it had been broken off.
    pub(super) fn restarted(&mut self) {
        for position in [self.restarted.take(), self.listed.take()].into_iter().flatten() {
            self.waiting.remove(&position);
        }
        self.audit = None;
        self.restarted = Some(self.append(Item::Restarted));
    }

    pub(super) fn applied(&mut self, pod: Arc<Pod>) {
        if let Some(PodRef { uid, .. }) = PodRef::of(&pod) {
            self.put(Arc::clone(&uid), Item::Applied(uid, pod));
        }
    }

    pub(super) fn deleted(&mut self, pod: Arc<Pod>) {
        if let Some(PodRef { uid, .. }) = PodRef::of(&pod) {
            self.put(Arc::clone(&uid), Item::Deleted(uid, pod));
        }
    }

    pub(super) fn listed(&mut self) {
        if let Some(position) = self.listed.take() {
            self.waiting.remove(&position);
        }
        self.listed = Some(self.append(Item::Listed));
    }

    /// The audit has listed the versions, or could not.
    pub(super) fn audited(&mut self, audit: PodWatchEvent) {
        self.audit = Some(audit);
    }

    /// The next event.
    pub(super) fn pop(&mut self) -> Option<PodWatchEvent> {
        let Some((_, item)) = self.waiting.pop_first() else {
            return self.audit.take();
        };
        Some(match item {
            Item::Restarted => {
                self.restarted = None;
                PodWatchEvent::Restarted
            }
            Item::Listed => {
                self.listed = None;
                PodWatchEvent::Listed
            }
            Item::Applied(uid, pod) => {
                self.positions.remove(&uid);
                PodWatchEvent::Applied(pod)
            }
            Item::Deleted(uid, pod) => {
                self.positions.remove(&uid);
                PodWatchEvent::Deleted(pod)
            }
        })
    }

    fn append(&mut self, item: Item) -> u64 {
        let position = self.next;
        self.next += 1;
        self.waiting.insert(position, item);
        position
    }

    /// An event of a pod takes the position of the one before: a pod that is in a list must stay in it. Only an event from before
    /// the start of a list moves behind it.
    fn put(&mut self, uid: Arc<str>, item: Item) {
        if let Some(position) = self.positions.get(&uid).copied() {
            // A UID never comes back.
            if matches!(self.waiting.get(&position), Some(Item::Deleted(..))) {
                return;
            }
            if self.restarted.is_none_or(|restarted| restarted < position) {
                self.waiting.insert(position, item);
                return;
            }
            self.waiting.remove(&position);
        }
        let position = self.append(item);
        self.positions.insert(uid, position);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
