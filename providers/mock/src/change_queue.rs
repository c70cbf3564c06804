//! A queue of changed pods that contains each pod at most once, so that a slow reader gets the newest value and the queue never
//! exceeds the number of pods.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use vk_provider::PodRef;

#[derive(Debug)]
pub(crate) struct ChangeQueue<T> {
    order: VecDeque<PodRef>,
    latest: HashMap<Arc<str>, T>,
}

// === impl ChangeQueue ===

impl<T> Default for ChangeQueue<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), latest: HashMap::new() }
    }
}

impl<T> ChangeQueue<T> {
    /// Queues a pod, or replaces its queued value.
    pub(crate) fn push(&mut self, pod: &PodRef, value: T) {
        if self.latest.insert(Arc::clone(&pod.uid), value).is_none() {
            self.order.push_back(pod.clone());
        }
    }

    pub(crate) fn pop(&mut self) -> Option<(PodRef, T)> {
        let pod = self.order.pop_front()?;
        let value = self.latest.remove(&pod.uid)?;
        Some((pod, value))
    }
}
