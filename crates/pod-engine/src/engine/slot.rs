//! One pod as the engine's owner and the pod's actor share it.

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

/// A pod that somebody wants, or of which the runtime has something.
pub(super) struct Slot {
    /// Which pod.
    pub(super) pod: PodRef,
    /// The pod as it is wanted; `None` for one that nobody has asked for yet.
    pub(super) bundle: Mutex<Option<PodBundle>>,
    /// The order to stop it, the newest one.
    pub(super) stop: watch::Sender<Option<Order>>,
    /// What is known of it.
    pub(super) view: watch::Sender<View>,
    /// What the runtime's list showed of it last.
    pub(super) listed: Mutex<Brief>,
    wake: Notify,
    stale: AtomicBool,
    hinted: AtomicBool,
}

/// An order to stop a pod.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// When its grace ends.
    pub(super) by: Instant,
    /// The pod as the core saw it last.
    pub(super) last_known: Option<Arc<Pod>>,
    /// Whether the pod is deleted: what is left of it goes. One that was only stopped, because its time was over, is still asked for.
    pub(super) forget: bool,
}

/// What is known of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Its status, once the runtime was asked.
    pub(super) status: Option<Arc<PodStatus>>,
    /// What the runtime said about it last.
    pub(super) snapshot: Arc<Snapshot>,
    /// Why the runtime could not be asked.
    pub(super) trouble: Option<String>,
    /// Nothing of it is left, and nobody works on it any more.
    pub(super) gone: bool,
}

/// The ids and states of a pod's sandboxes and containers, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Brief {
    pub(super) sandboxes: Vec<(String, SandboxState)>,
    pub(super) containers: Vec<(String, ContainerState)>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(pod: PodRef) -> Self {
        Self {
            pod,
            bundle: Mutex::default(),
            stop: watch::Sender::new(None),
            view: watch::Sender::new(View::default()),
            listed: Mutex::default(),
            wake: Notify::new(),
            stale: AtomicBool::new(true),
            hinted: AtomicBool::new(false),
        }
    }

    /// Something of it is to be looked at.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// What the runtime has of it may have changed.
    pub(super) fn touch(&self) {
        self.stale.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// The same, for whoever looks next.
    pub(super) fn outdate(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The runtime told that something happened to it.
    pub(super) fn hint(&self) {
        self.hinted.store(true, Ordering::Release);
        self.touch();
    }

    /// Whether the runtime told of it since the last time that this was asked.
    pub(super) fn take_hint(&self) -> bool {
        self.hinted.swap(false, Ordering::AcqRel)
    }

    /// Whether the runtime must be asked. It is for the caller to do so now, or to touch the slot again.
    pub(super) fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::AcqRel)
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Whether the pod has ended, by what was told of it.
    pub(super) fn is_over(&self) -> bool {
        let view = self.view.borrow();
        let phase = view.status.as_ref().and_then(|status| status.phase.as_deref());
        vk_provider::pod::is_terminal_phase(phase)
    }

    /// Waits until the runtime was asked about the pod, with or without success.
    pub(super) async fn known(&self) -> View {
        let mut view = self.view.subscribe();
        let known = |view: &View| view.status.is_some() || view.trouble.is_some() || view.gone;
        // The sender is here, so this cannot fail.
        view.wait_for(known).await.map(|view| view.clone()).unwrap_or_default()
    }
}

// === impl Brief ===

impl Brief {
    /// The list of one pod.
    pub(super) fn of(listing: &Listing) -> Self {
        let mut brief = Self {
            sandboxes: listing.sandboxes.iter().map(|entry| (entry.id.clone(), entry.state)).collect(),
            containers: listing.containers.iter().map(|entry| (entry.id.clone(), entry.state)).collect(),
        };
        brief.sort();
        brief
    }

    pub(super) fn sort(&mut self) {
        self.sandboxes.sort_by(|one, other| one.0.cmp(&other.0));
        self.containers.sort_by(|one, other| one.0.cmp(&other.0));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}
