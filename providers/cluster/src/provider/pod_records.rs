//! What is remembered of pods: nothing that a restart could not do without.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;
use vk_provider::PodRef;

/// How long the watch may take to tell of a pod that was just made.
const WATCH_LAG: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct PodRecords {
    pods: HashMap<Arc<str>, PodRecord>,
}

/// One pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodRecord {
    /// As it was given last.
    pub(super) upper: Option<Arc<Pod>>,
    /// It is to stop.
    pub(super) stopping: bool,
    /// As it was made below, and when. Nobody has told of it yet.
    created: Option<(Instant, Arc<Pod>)>,
    /// As it looked below before it went.
    pub(super) last: Option<Arc<Pod>>,
    /// Why the lower cluster does not take it, and never will.
    pub(super) rejected: Option<String>,
}

// === impl PodRecords ===

impl PodRecords {
    pub(super) fn get(&self, pod: &PodRef) -> PodRecord {
        self.pods.get(&pod.uid).cloned().unwrap_or_default()
    }

    /// All that were given.
    pub(super) fn pods(&self) -> Vec<PodRef> {
        self.pods.values().filter_map(|known| PodRef::of(known.upper.as_deref()?)).collect()
    }

    /// Whether it was not known before.
    pub(super) fn set_upper(&mut self, pod: &PodRef, upper: &Arc<Pod>) -> bool {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        known.upper.replace(Arc::clone(upper)).is_none()
    }

    pub(super) fn set_created(&mut self, pod: &PodRef, lower: Arc<Pod>) {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        (known.created, known.last, known.rejected) = (Some((Instant::now(), lower)), None, None);
    }

    pub(super) fn set_rejected(&mut self, pod: &PodRef, why: String) {
        self.pods.entry(Arc::clone(&pod.uid)).or_default().rejected = Some(why);
    }

    pub(super) fn set_stopping(&mut self, pod: &PodRef) {
        self.pods.entry(Arc::clone(&pod.uid)).or_default().stopping = true;
    }

    /// It was told of, or told to be gone. Whether it is gone because it was to stop.
    pub(super) fn observe(&mut self, pod: &PodRef, lower: &Arc<Pod>, gone: bool) -> bool {
        // What nobody gave us is nothing to remember: nobody will ask for it when it is gone.
        let Some(known) = self.pods.get_mut(&pod.uid) else { return false };
        known.created = None;
        known.last = gone.then(|| Arc::clone(lower));
        gone && known.stopping
    }

    /// Another session begins: all that matters is given anew.
    pub(super) fn clear(&mut self) {
        self.pods.clear();
    }

    pub(super) fn forget(&mut self, pod: &PodRef) {
        self.pods.remove(&pod.uid);
    }
}

// === impl PodRecord ===

impl PodRecord {
    /// What was made below and nobody has told of yet, which soon somebody will.
    pub(super) fn recently_created(&self) -> Option<Arc<Pod>> {
        let (when, lower) = self.created.as_ref()?;
        (when.elapsed() < WATCH_LAG).then(|| Arc::clone(lower))
    }
}
