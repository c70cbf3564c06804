//! What the provider remembers of pods. Nothing of it is needed after a restart.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;
use vk_provider::PodRef;

/// How long the watch may lag behind the creation of a pod.
const WATCH_LAG: Duration = Duration::from_secs(5);
/// How often the labels of a lower pod are restored at most.
const LABELS_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct PodRecords {
    pods: HashMap<Arc<str>, PodRecord>,
}

/// What is remembered of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodRecord {
    /// The last version of the upper pod.
    pub(super) upper: Option<Arc<Pod>>,
    /// Deletion was requested.
    pub(super) stopping: bool,
    /// The lower pod that is to be created, until it is.
    planned: Option<Arc<Pod>>,
    /// The lower pod as created, and when, until the watch reports it.
    created: Option<(Instant, Arc<Pod>)>,
    /// The last state of a deleted lower pod.
    pub(super) last: Option<Arc<Pod>>,
    /// Why the lower cluster rejects the pod permanently.
    pub(super) rejected: Option<String>,
    /// The UID of the lower pod.
    pub(super) lower_uid: Option<String>,
    /// When the labels of the lower pod were restored last.
    labels_restored: Option<Instant>,
}

// === impl PodRecords ===

impl PodRecords {
    pub(super) fn get(&self, pod: &PodRef) -> PodRecord {
        self.pods.get(&pod.uid).cloned().unwrap_or_default()
    }

    /// All pods whose upper pod is known.
    pub(super) fn pods(&self) -> Vec<PodRef> {
        self.pods.values().filter_map(|known| PodRef::of(known.upper.as_deref()?)).collect()
    }

    /// Returns whether the upper pod was unknown before.
    pub(super) fn set_upper(&mut self, pod: &PodRef, upper: &Arc<Pod>) -> bool {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        known.upper.replace(Arc::clone(upper)).is_none()
    }

    pub(super) fn set_planned(&mut self, pod: &PodRef, lower: Arc<Pod>) {
        self.pods.entry(Arc::clone(&pod.uid)).or_default().planned = Some(lower);
    }

    /// The lower cluster does not take the pod: it is not waited for.
    pub(super) fn clear_planned(&mut self, pod: &PodRef) {
        if let Some(known) = self.pods.get_mut(&pod.uid) {
            known.planned = None;
        }
    }

    /// The lower pods that the watch has not reported yet, by the UIDs of their upper pods.
    pub(super) fn expected(&self) -> BTreeMap<Arc<str>, Arc<Pod>> {
        let expected = |(uid, known): (&Arc<str>, &PodRecord)| {
            let created = known.created.as_ref().map(|(_, lower)| lower);
            let lower = created.or(known.planned.as_ref()).filter(|_| !known.stopping)?;
            Some((Arc::clone(uid), Arc::clone(lower)))
        };
        self.pods.iter().filter_map(expected).collect()
    }

    pub(super) fn set_created(&mut self, pod: &PodRef, lower: Arc<Pod>) {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        known.lower_uid.clone_from(&lower.metadata.uid);
        (known.planned, known.last, known.rejected) = (None, None, None);
        known.created = Some((Instant::now(), lower));
    }

    pub(super) fn set_rejected(&mut self, pod: &PodRef, why: String) {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        (known.planned, known.rejected) = (None, Some(why));
    }

    pub(super) fn set_stopping(&mut self, pod: &PodRef) {
        self.pods.entry(Arc::clone(&pod.uid)).or_default().stopping = true;
    }

    /// Records an event of the watch. Returns whether the pod was deleted after deletion was requested.
    pub(super) fn observe(&mut self, pod: &PodRef, lower: &Arc<Pod>, gone: bool) -> bool {
        // Pods that the core has not passed to us are not remembered: nobody asks for them after their deletion.
        let Some(known) = self.pods.get_mut(&pod.uid) else { return false };
        (known.planned, known.created) = (None, None);
        known.lower_uid.clone_from(&lower.metadata.uid);
        known.last = gone.then(|| Arc::clone(lower));
        gone && known.stopping
    }

    /// Whether the labels of the lower pod may be restored now. Somebody who removes them again and again is not followed each time.
    pub(super) fn begin_restoring_labels(&mut self, pod: &PodRef) -> bool {
        let known = self.pods.entry(Arc::clone(&pod.uid)).or_default();
        let is_due = known.labels_restored.is_none_or(|last| last.elapsed() >= LABELS_INTERVAL);
        if is_due {
            known.labels_restored = Some(Instant::now());
        }
        is_due
    }

    /// Forgets everything: in a new session the core passes all pods again.
    pub(super) fn clear(&mut self) {
        self.pods.clear();
    }

    pub(super) fn forget(&mut self, pod: &PodRef) {
        self.pods.remove(&pod.uid);
    }
}

// === impl PodRecord ===

impl PodRecord {
    /// The lower pod that was just created, as long as the watch may not have reported it.
    pub(super) fn recently_created(&self) -> Option<Arc<Pod>> {
        let (when, lower) = self.created.as_ref()?;
        (when.elapsed() < WATCH_LAG).then(|| Arc::clone(lower))
    }
}
