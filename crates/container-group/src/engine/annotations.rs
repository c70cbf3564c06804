//! Annotations for pods, the newest value of each key, until the core reads them.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt as _, stream, stream::BoxStream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use vk_provider::{PodChange, PodRef};

/// Queues annotations.
#[derive(Debug, Default)]
pub(super) struct AnnotationQueue {
    queued: Mutex<BTreeMap<PodRef, BTreeMap<String, Option<String>>>>,
    changed: Notify,
}

// === impl AnnotationQueue ===

impl AnnotationQueue {
    pub(super) fn annotations(&self, pod: &PodRef, values: BTreeMap<String, Option<String>>) {
        self.queued.lock().entry(pod.clone()).or_default().extend(values);
        self.changed.notify_one();
    }

    pub(super) fn clear(&self) {
        self.queued.lock().clear();
    }

    /// What is queued, then what follows.
    pub(super) fn changes(self: &Arc<Self>) -> BoxStream<'static, PodChange> {
        stream::unfold(Arc::clone(self), |this| async move {
            loop {
                let changed = this.changed.notified();
                let next = this.queued.lock().pop_first();
                if let Some((pod, values)) = next {
                    drop(changed);
                    return Some((PodChange::Annotations(pod, values), this));
                }
                changed.await;
            }
        })
        .boxed()
    }
}
