//! The state of one pod that the engine and the pod's task share.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use vk_provider::{PodBundle, PodRef};

use crate::{
    backend::Listing,
    snapshot::{ContainerState, SandboxState, Snapshot},
};

/// A pod that was created, or that has sandboxes or containers in the runtime.
pub(super) struct PodHandle {
    /// The identity of the pod.
    pub(super) pod: PodRef,
    /// The desired pod; `None` until it is created in this process.
    pub(super) bundle: Mutex<Option<PodBundle>>,
    /// The latest request to stop it.
    pub(super) stop: watch::Sender<Option<StopRequest>>,
    /// The observed state.
    pub(super) view: watch::Sender<PodView>,
    /// Its sandboxes and containers in the last runtime list.
    pub(super) listed: Mutex<PodListing>,
    wake: Notify,
    stale: AtomicBool,
    has_event: AtomicBool,
}

/// A request to stop a pod.
#[derive(Clone, Debug)]
pub(super) struct StopRequest {
    /// The end of the grace period.
    pub(super) deadline: Instant,
    /// The pod as the core saw it last.
    pub(super) last_known: Option<Arc<Pod>>,
    /// Whether the pod is deleted, so that everything of it is removed. A pod that was only stopped, because its deadline passed, still
    /// exists in the API.
    pub(super) remove: bool,
}

/// The observed state of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodView {
    /// The status that was reported last.
    pub(super) status: Option<Arc<PodStatus>>,
    /// The runtime's state of the pod.
    pub(super) snapshot: Arc<Snapshot>,
    /// Why the pod could not be observed.
    pub(super) error: Option<String>,
    /// Nothing of the pod is left, and its task has ended.
    pub(super) removed: bool,
}

/// The ids and states of a pod's sandboxes and containers, sorted by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodListing {
    pub(super) sandboxes: Vec<(String, SandboxState)>,
    pub(super) containers: Vec<(String, ContainerState)>,
}

// === impl PodHandle ===

impl PodHandle {
    pub(super) fn new(pod: PodRef) -> Self {
        Self {
            pod,
            bundle: Mutex::default(),
            stop: watch::Sender::new(None),
            view: watch::Sender::new(PodView::default()),
            listed: Mutex::default(),
            wake: Notify::new(),
            stale: AtomicBool::new(true),
            has_event: AtomicBool::new(false),
        }
    }

    /// The desired pod, if it was created in this process.
    pub(super) fn desired_pod(&self) -> Option<Arc<Pod>> {
        self.bundle.lock().as_ref().map(|bundle| Arc::clone(&bundle.pod))
    }

    /// Wakes the pod's task.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Resolves when the task is woken.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Marks the snapshot as stale, for the next pass of the task.
    pub(super) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Marks the snapshot as stale and wakes the task.
    pub(super) fn invalidate(&self) {
        self.mark_stale();
        self.wake();
    }

    /// Whether the snapshot is stale. The caller must refresh it now, or mark it as stale again.
    pub(super) fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::AcqRel)
    }

    /// Records a runtime event of the pod.
    pub(super) fn record_runtime_event(&self) {
        self.has_event.store(true, Ordering::Release);
        self.invalidate();
    }

    /// Whether the runtime sent an event of the pod since the last call.
    pub(super) fn take_runtime_event(&self) -> bool {
        self.has_event.swap(false, Ordering::AcqRel)
    }

    /// Whether the reported phase is final.
    pub(super) fn is_finished(&self) -> bool {
        let view = self.view.borrow();
        let phase = view.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// Waits until the pod was observed once, with or without success.
    pub(super) async fn observed(&self) -> PodView {
        let mut view = self.view.subscribe();
        let is_observed = |view: &PodView| view.status.is_some() || view.error.is_some() || view.removed;
        // The sender is in `self`, so this cannot fail.
        view.wait_for(is_observed).await.map(|view| view.clone()).unwrap_or_default()
    }
}

// === impl PodListing ===

impl PodListing {
    /// The listing of one pod.
    pub(super) fn new(listing: &Listing) -> Self {
        let mut own = Self {
            sandboxes: listing.sandboxes.iter().map(|entry| (entry.id.clone(), entry.state)).collect(),
            containers: listing.containers.iter().map(|entry| (entry.id.clone(), entry.state)).collect(),
        };
        own.sort();
        own
    }

    pub(super) fn sort(&mut self) {
        self.sandboxes.sort_by(|one, other| one.0.cmp(&other.0));
        self.containers.sort_by(|one, other| one.0.cmp(&other.0));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}
