//! What all parts of the engine share.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use vk_provider::{Error, EventKind, Outbox, PodEvent, PodRef, Result};
use vk_supervisor::{Clock, Supervisor, task};

use super::{
    actor,
    health::Health,
    meter::Meter,
    note,
    slot::{Brief, Slot, View},
};
use crate::{
    Settings,
    backend::{ContainerBackend, Listing},
    image::Puller,
    log::ledger::Ledger,
    make::Machine,
    probe::{Prober, Tell},
    snapshot::label,
    volume::Place,
};

/// The engine's inside.
pub(super) struct Shared {
    pub(super) backend: Arc<dyn ContainerBackend>,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) supervisor: Supervisor,
    pub(super) outbox: Arc<Outbox>,
    pub(super) puller: Puller,
    pub(super) prober: Arc<Prober>,
    pub(super) place: Place,
    pub(super) ledger: Ledger,
    pub(super) machine: Machine,
    pub(super) health: Health,
    pub(super) meter: Meter,
    /// Since when this process is at work.
    pub(super) since: Timestamp,
    pods: Mutex<HashMap<Arc<str>, Arc<Slot>>>,
    /// The runtime was listed once, so that every pod of which it has something is known.
    listed: AtomicBool,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(
        backend: Arc<dyn ContainerBackend>,
        settings: Settings,
        clock: Clock,
        supervisor: Supervisor,
    ) -> Result<Self> {
        Ok(Self {
            puller: Puller::new(Arc::clone(&backend), &settings, clock.clone()),
            prober: Prober::new(Arc::clone(&backend), clock.clone())?,
            place: Place::new(&settings.root),
            ledger: Ledger::new(&settings.root),
            machine: Machine::detect(),
            health: Health::default(),
            meter: Meter::new(clock.now()),
            since: clock.now(),
            outbox: Arc::default(),
            pods: Mutex::default(),
            listed: AtomicBool::new(false),
            backend,
            settings,
            clock,
            supervisor,
        })
    }

    /// The mark of all that is ours.
    pub(super) fn mark(&self) -> BTreeMap<String, String> {
        [(label::NODE.to_owned(), self.settings.node.clone())].into()
    }

    /// The mark of what is ours of one pod.
    pub(super) fn mark_of(&self, pod: &PodRef) -> BTreeMap<String, String> {
        let mut mark = self.mark();
        mark.insert(label::POD_UID.to_owned(), pod.uid.to_string());
        mark
    }

    /// The slot of a pod that is known.
    pub(super) fn slot(&self, uid: &str) -> Option<Arc<Slot>> {
        self.pods.lock().get(uid).cloned()
    }

    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        self.pods.lock().values().cloned().collect()
    }

    /// Works on a pod's slot, which is made where there is none. Nobody takes the slot away meanwhile.
    pub(super) fn claim<T>(self: &Arc<Self>, pod: &PodRef, work: impl FnOnce(&Slot) -> T) -> T {
        let mut pods = self.pods.lock();
        if let Some(slot) = pods.get(&pod.uid) {
            return work(slot);
        }
        let slot = Arc::new(Slot::new(pod.clone()));
        pods.insert(Arc::clone(&pod.uid), Arc::clone(&slot));
        let answer = work(&slot);
        let name = format!("pod {}/{}", pod.namespace, pod.name);
        self.supervisor.spawn(name, task::Kind::Work, actor::run(Arc::clone(self), slot));
        answer
    }

    /// Takes a slot away, unless somebody wants its pod meanwhile. Tells whether it is gone.
    pub(super) fn release(&self, slot: &Slot, may_be_wanted: bool) -> bool {
        let mut pods = self.pods.lock();
        if !may_be_wanted && slot.bundle.lock().is_some() {
            return false;
        }
        pods.remove(&slot.pod.uid);
        slot.view.send_modify(|view| view.gone = true);
        true
    }

    /// How a pod was last, of which the runtime has not told this process anything yet though somebody has asked for it.
    pub(super) async fn remembered(&self, slot: &Slot, view: &View) -> Option<PodStatus> {
        if view.status.is_some() {
            return None;
        }
        let wanted = slot.bundle.lock().as_ref().map(|bundle| Arc::clone(&bundle.pod))?;
        let noted = note::read(&self.place, &slot.pod).await.and_then(|pod| pod.status);
        noted.or_else(|| wanted.status.clone())
    }

    /// The slot of a pod, where anything of it may be: `None` is certain.
    pub(super) async fn find(self: &Arc<Self>, pod: &PodRef) -> Result<Option<Arc<Slot>>> {
        if let Some(slot) = self.slot(&pod.uid) {
            return Ok(Some(slot));
        }
        // Only this process starts anything, and it makes a slot before.
        if !self.listed.load(Ordering::Acquire) {
            let listing = self.backend.list(&self.mark_of(pod)).await.map_err(|error| {
                let message = format!("look for pod {pod}: the container runtime does not answer");
                Error::unavailable(message).caused_by(error)
            })?;
            self.compare(listing, Some(pod));
        }
        Ok(self.slot(&pod.uid))
    }

    /// Compares what the runtime has with what was known: of all pods, or of this one. Tells whether something was new of which the
    /// runtime had not told.
    pub(super) fn compare(self: &Arc<Self>, listing: Listing, only: Option<&PodRef>) -> bool {
        let mut there: HashMap<Arc<str>, (PodRef, Brief)> = HashMap::new();
        for entry in listing.sandboxes {
            let uid = Arc::clone(&entry.pod.uid);
            let (_, brief) = there.entry(uid).or_insert_with(|| (entry.pod, Brief::default()));
            brief.sandboxes.push((entry.id, entry.state));
        }
        for entry in listing.containers {
            let uid = Arc::clone(&entry.pod.uid);
            let (_, brief) = there.entry(uid).or_insert_with(|| (entry.pod, Brief::default()));
            brief.containers.push((entry.id, entry.state));
        }
        if only.is_none() {
            for slot in self.slots() {
                let uid = Arc::clone(&slot.pod.uid);
                there.entry(uid).or_insert_with(|| (slot.pod.clone(), Brief::default()));
            }
        }
        let mut missed = false;
        for (pod, mut brief) in there.into_values().filter(|(pod, _)| !pod.uid.is_empty()) {
            brief.sort();
            let slot = match self.slot(&pod.uid) {
                Some(slot) => slot,
                None if brief.is_empty() => continue,
                None => {
                    self.claim(&pod, |_| ());
                    let Some(slot) = self.slot(&pod.uid) else { continue };
                    slot
                }
            };
            let mut listed = slot.listed.lock();
            let told = slot.take_hint();
            if *listed != brief {
                missed |= !told;
                *listed = brief;
                drop(listed);
                slot.touch();
            }
        }
        if only.is_none() {
            self.listed.store(true, Ordering::Release);
        }
        missed
    }

    /// Tells what happened to a pod, or to one of its containers.
    pub(super) fn tell(
        &self,
        pod: &PodRef,
        container: Option<&str>,
        kind: EventKind,
        reason: &str,
        message: String,
    ) {
        let container = container.map(str::to_owned);
        self.outbox.event(PodEvent { pod: pod.clone(), container, kind, reason: reason.to_owned(), message });
    }

    /// Where probes and hooks tell.
    pub(super) fn teller(&self) -> Tell {
        let outbox = Arc::clone(&self.outbox);
        Arc::new(move |event| outbox.event(event))
    }
}

/// Work with files, where it holds nobody up.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("work with files").caused_by(error))
}
