//! The parts of the engine that all tasks use, and the registry of pods.

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
use tracing::warn;
use vk_provider::{Error, EventKind, Outbox, PodEvent, PodRef, Result};
use vk_supervisor::{Clock, Supervisor, task};

use super::{
    actor, checkpoint,
    health::RuntimeHealth,
    pod_cgroups::PodCgroups,
    pod_handle::{PodHandle, PodListing, PodView},
    stats::StatsCollector,
};
use crate::{
    Settings,
    backend::{ContainerBackend, Listing, full_message},
    image::Puller,
    log::registry::LogDirectoryRegistry,
    probe::{EventRecorder, Prober},
    snapshot::label,
    spec::HostFeatures,
    volume::PodDirs,
};

/// The parts of the engine that all tasks use.
pub(super) struct EngineContext {
    pub(super) backend: Arc<dyn ContainerBackend>,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) supervisor: Supervisor,
    pub(super) outbox: Arc<Outbox>,
    pub(super) puller: Puller,
    pub(super) prober: Arc<Prober>,
    pub(super) dirs: PodDirs,
    pub(super) log_directories: LogDirectoryRegistry,
    pub(super) features: HostFeatures,
    /// `None` leaves cgroups to the runtime.
    pub(super) cgroups: Option<Arc<PodCgroups>>,
    pub(super) health: RuntimeHealth,
    pub(super) stats: StatsCollector,
    /// Start time of this process.
    pub(super) started: Timestamp,
    pods: Mutex<HashMap<Arc<str>, Arc<PodHandle>>>,
    /// The runtime was listed once, so every pod that it has is registered.
    listed: AtomicBool,
}

/// One pod of an engine: what the parts of its task work on.
#[derive(Clone)]
pub(super) struct PodScope {
    pub(super) context: Arc<EngineContext>,
    pub(super) handle: Arc<PodHandle>,
}

// === impl EngineContext ===

impl EngineContext {
    pub(super) fn new(
        backend: Arc<dyn ContainerBackend>,
        settings: Settings,
        clock: Clock,
        supervisor: Supervisor,
    ) -> Result<Self> {
        Ok(Self {
            puller: Puller::new(Arc::clone(&backend), &settings),
            prober: Prober::new(Arc::clone(&backend), clock.clone())?,
            dirs: PodDirs::new(&settings.root),
            log_directories: LogDirectoryRegistry::new(&settings.root),
            features: HostFeatures::detect(),
            cgroups: PodCgroups::new(&settings).map(Arc::new),
            health: RuntimeHealth::default(),
            stats: StatsCollector::new(clock.now()),
            started: clock.now(),
            outbox: Arc::default(),
            pods: Mutex::default(),
            listed: AtomicBool::new(false),
            backend,
            settings,
            clock,
            supervisor,
        })
    }

    /// The labels of all runtime objects of this node.
    pub(super) fn node_labels(&self) -> BTreeMap<String, String> {
        [(label::NODE.to_owned(), self.settings.node.clone())].into()
    }

    /// The labels of all runtime objects of one pod.
    pub(super) fn pod_labels(&self, pod: &PodRef) -> BTreeMap<String, String> {
        let mut labels = self.node_labels();
        labels.insert(label::POD_UID.to_owned(), pod.uid.to_string());
        labels
    }

    /// The handle of a registered pod.
    pub(super) fn pod(&self, uid: &str) -> Option<Arc<PodHandle>> {
        self.pods.lock().get(uid).cloned()
    }

    /// Whether every pod that the runtime has is registered.
    pub(super) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    /// The handles of all registered pods.
    pub(super) fn pods(&self) -> Vec<Arc<PodHandle>> {
        self.pods.lock().values().cloned().collect()
    }

    /// Changes a pod's handle while it cannot be unregistered. An unknown pod is registered and its task started.
    pub(super) fn with_pod<T>(self: &Arc<Self>, pod: &PodRef, change: impl FnOnce(&PodHandle) -> T) -> T {
        let mut pods = self.pods.lock();
        if let Some(handle) = pods.get(&pod.uid) {
            return change(handle);
        }
        let handle = Arc::new(PodHandle::new(pod.clone()));
        pods.insert(Arc::clone(&pod.uid), Arc::clone(&handle));
        let answer = change(&handle);
        let name = format!("pod {}/{}", pod.namespace, pod.name);
        let scope = PodScope { context: Arc::clone(self), handle };
        self.supervisor.spawn(name, task::Kind::Work, actor::run(scope));
        answer
    }

    /// Unregisters a pod. Unless `force` is set, a pod that was created meanwhile is kept. Returns whether it is unregistered.
    pub(super) fn unregister(&self, handle: &PodHandle, force: bool) -> bool {
        let mut pods = self.pods.lock();
        if !force && handle.bundle.lock().is_some() {
            return false;
        }
        pods.remove(&handle.pod.uid);
        handle.view.send_modify(|view| view.removed = true);
        true
    }

    /// The status of a created pod that was not observed yet: that of its checkpoint, else that of the API server.
    pub(super) async fn last_status(&self, handle: &PodHandle, view: &PodView) -> Option<PodStatus> {
        if view.status.is_some() {
            return None;
        }
        let desired = handle.desired_pod()?;
        let saved = checkpoint::read(&self.dirs, &handle.pod).await.and_then(|pod| pod.status);
        saved.or_else(|| desired.status.clone())
    }

    /// Finds a pod. `None` means that it certainly does not exist.
    pub(super) async fn find_pod(self: &Arc<Self>, pod: &PodRef) -> Result<Option<Arc<PodHandle>>> {
        if let Some(handle) = self.pod(&pod.uid) {
            return Ok(Some(handle));
        }
        // Only this process starts containers, and it registers their pod first.
        if !self.is_listed() {
            let listing = self.backend.list(&self.pod_labels(pod)).await.map_err(|error| {
                let message = format!("find pod {pod}: the container runtime does not answer");
                Error::unavailable(message).caused_by(error)
            })?;
            self.apply_listing(listing, Some(pod));
        }
        Ok(self.pod(&pod.uid))
    }

    /// Compares a runtime list with the registered pods, and wakes the tasks of pods that changed. The list is that of all pods, or of `only`
    /// one. Returns whether a pod changed without a runtime event.
    pub(super) fn apply_listing(self: &Arc<Self>, listing: Listing, only: Option<&PodRef>) -> bool {
        let mut pods: HashMap<Arc<str>, (PodRef, PodListing)> = HashMap::new();
        for entry in listing.sandboxes {
            let uid = Arc::clone(&entry.pod.uid);
            let (_, own) = pods.entry(uid).or_insert_with(|| (entry.pod, PodListing::default()));
            own.sandboxes.push((entry.id, entry.state));
        }
        for entry in listing.containers {
            let uid = Arc::clone(&entry.pod.uid);
            let (_, own) = pods.entry(uid).or_insert_with(|| (entry.pod, PodListing::default()));
            own.containers.push((entry.id, entry.state));
        }
        if only.is_none() {
            for handle in self.pods() {
                let uid = Arc::clone(&handle.pod.uid);
                pods.entry(uid).or_insert_with(|| (handle.pod.clone(), PodListing::default()));
            }
        }
        let mut missed = false;
        for (pod, mut own) in pods.into_values().filter(|(pod, _)| !pod.uid.is_empty()) {
            own.sort();
            let handle = match self.pod(&pod.uid) {
                Some(handle) => handle,
                None if own.is_empty() => continue,
                None => {
                    self.with_pod(&pod, |_| ());
                    let Some(handle) = self.pod(&pod.uid) else { continue };
                    handle
                }
            };
            let mut listed = handle.listed.lock();
            let has_event = handle.take_runtime_event();
            if *listed != own {
                missed |= !has_event;
                *listed = own;
                drop(listed);
                handle.invalidate();
            }
        }
        if only.is_none() {
            self.listed.store(true, Ordering::Release);
        }
        missed
    }

    /// The recorder for events of probes and hooks.
    pub(super) fn event_recorder(&self) -> EventRecorder {
        let outbox = Arc::clone(&self.outbox);
        Arc::new(move |event| outbox.event(event))
    }
}

// === impl PodScope ===

impl PodScope {
    pub(super) fn pod(&self) -> &PodRef {
        &self.handle.pod
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    /// Records an event of the pod.
    pub(super) fn record_event(&self, kind: EventKind, reason: &str, message: String) {
        self.record(None, kind, reason, message);
    }

    /// Records an event of one of the pod's containers.
    pub(super) fn record_container_event(
        &self,
        container: &str,
        kind: EventKind,
        reason: &str,
        message: String,
    ) {
        self.record(Some(container.to_owned()), kind, reason, message);
    }

    fn record(&self, container: Option<String>, kind: EventKind, reason: &str, message: String) {
        let event =
            PodEvent { pod: self.handle.pod.clone(), container, kind, reason: reason.to_owned(), message };
        self.context.outbox.event(event);
    }

    /// Logs a failure that has no other consequence.
    pub(super) fn warn(&self, what: &str, error: &Error) {
        warn!(pod = %self.handle.pod, error = full_message(error), "{what}");
    }
}

/// Runs file system work on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("run file system work").caused_by(error))
}
