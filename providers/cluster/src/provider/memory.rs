//! What is remembered of pods: nothing that a restart could not do without.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;
use vk_provider::PodRef;

/// How long the watch may take to tell of a pod that was just made.
const UNSEEN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Memory {
    pods: HashMap<Arc<str>, Known>,
}

/// One pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// As it was given last.
    pub(super) upper: Option<Arc<Pod>>,
    /// It is to stop.
    pub(super) stops: bool,
    /// As it was made below, and when. Nobody has told of it yet.
    made: Option<(Instant, Arc<Pod>)>,
    /// As it looked below before it went.
    pub(super) last: Option<Arc<Pod>>,
    /// Why the lower cluster does not take it, and never will.
    pub(super) refused: Option<String>,
}

// === impl Memory ===

impl Memory {
    pub(super) fn of(&self, pod: &PodRef) -> Known {
        self.pods.get(&pod.uid).cloned().unwrap_or_default()
    }

    /// All that were given.
    pub(super) fn all(&self) -> Vec<PodRef> {
        self.pods.values().filter_map(|known| PodRef::of(known.upper.as_deref()?)).collect()
    }

    /// Whether it was not known before.
    pub(super) fn given(&mut self, pod: &PodRef, upper: &Arc<Pod>) -> bool {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        known.upper.replace(Arc::clone(upper)).is_none()
    }

    pub(super) fn made(&mut self, pod: &PodRef, lower: Arc<Pod>) {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        (known.made, known.last, known.refused) = (Some((Instant::now(), lower)), None, None);
    }

    pub(super) fn refused(&mut self, pod: &PodRef, why: String) {
        self.pods.entry(Arc::clone(&pod.uid)).or_default().refused = Some(why);
    }

    pub(super) fn stops(&mut self, pod: &PodRef) {
        self.pods.entry(Arc::clone(&pod.uid)).or_default().stops = true;
    }

    /// It was told of, or told to be gone. Whether it is gone because it was to stop.
    pub(super) fn saw(&mut self, pod: &PodRef, lower: &Arc<Pod>, gone: bool) -> bool {
        // What nobody gave us is nothing to remember: nobody will ask for it when it is gone.
        let Some(known) = self.pods.get_mut(&pod.uid) else { return false };
        known.made = None;
        known.last = gone.then(|| Arc::clone(lower));
        gone && known.stops
    }

    /// Another term begins: all that matters is given anew.
    pub(super) fn clear(&mut self) {
        self.pods.clear();
    }

    pub(super) fn forget(&mut self, pod: &PodRef) {
        self.pods.remove(&pod.uid);
    }
}

// === impl Known ===

impl Known {
    /// What was made below and nobody has told of yet, which soon somebody will.
    pub(super) fn unseen(&self) -> Option<Arc<Pod>> {
        let (when, lower) = self.made.as_ref()?;
        (when.elapsed() < UNSEEN).then(|| Arc::clone(lower))
    }
}
