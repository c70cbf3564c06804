//! The probes of one pod.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use vk_provider::PodRef;

use super::{
    EventRecorder,
    prober::Prober,
    result::{ProbeKind, ProbeResult, ProbeResults},
    tracker::ProbeTarget,
    worker::ProbeWorker,
};
use crate::{
    containers::{PodContainer, Role, pod_containers},
    snapshot::{self, ContainerState, Snapshot},
};

/// The probes of a pod. Dropping it ends them.
pub struct PodProbes {
    pub(super) shared: Arc<PodProbeContext>,
    pub(super) inner: Mutex<ProbeWorkers>,
}

#[derive(Default)]
pub(super) struct ProbeWorkers {
    pub(super) workers: BTreeMap<(String, ProbeKind), Arc<ProbeWorker>>,
    pub(super) tasks: JoinSet<()>,
}

/// What the tasks of a pod's probes share.
pub(super) struct PodProbeContext {
    pub(super) prober: Arc<Prober>,
    pub(super) pod: PodRef,
    pub(super) record: EventRecorder,
    pub(super) state: Mutex<State>,
    changes: watch::Sender<u64>,
}

/// The observed state of the pod, and the results of its probes.
#[derive(Default)]
pub(super) struct State {
    pub(super) probe_results: ProbeResults,
    pub(super) targets: BTreeMap<String, ProbeTarget>,
    pub(super) ip: Option<String>,
    pub(super) finished: bool,
    pub(super) stopping: bool,
}

// === impl PodProbeContext ===

impl PodProbeContext {
    /// Notifies the pod's task if a result changed.
    pub(super) fn notify_if(&self, changed: bool) {
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

// === impl Probes ===

impl PodProbes {
    /// The probes of this pod; none is running yet.
    pub fn new(prober: Arc<Prober>, pod: PodRef, record: EventRecorder) -> Self {
        let (changes, _) = watch::channel(0);
        let shared = PodProbeContext { prober, pod, record, state: Mutex::default(), changes };
        Self { shared: Arc::new(shared), inner: Mutex::default() }
    }

    /// Applies the current state of the pod. Call it whenever the status was computed, and before containers are started, so that probes run
    /// at the same times as in a kubelet. Readiness is probed at once if a container could be ready and is not.
    pub fn sync(&self, pod: &Pod, snapshot: &Snapshot, status: &PodStatus) {
        let probed: Vec<PodContainer<'_>> = pod_containers(pod).filter(is_probed).collect();
        let finished = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let mut renewed = Vec::new();
        let mut unready = Vec::new();
        let stopping = {
            let mut state = self.shared.state.lock();
            state.finished = finished;
            state.ip = status.pod_ip.clone().filter(|ip| !ip.is_empty());
            for container in &probed {
                let name = &container.spec.name;
                let target = target(pod, container, snapshot, status);
                let Some(target) = target else {
                    state.targets.remove(name);
                    continue;
                };
                let result = state.probe_results.get(&target.id, ProbeKind::Readiness);
                if target.running.is_some() && target.started && result != Some(ProbeResult::Success) {
                    unready.push(name.clone());
                }
                if state.targets.get(name).is_none_or(|known| known.id != target.id) {
                    renewed.push(name.clone());
                }
                state.targets.insert(name.clone(), target);
            }
            state.stopping || pod.metadata.deletion_timestamp.is_some()
        };
        if stopping {
            self.begin_stopping();
        }
        let mut inner = self.inner.lock();
        if !finished && !stopping {
            for container in &probed {
                inner.start(container, &self.shared);
            }
        }
        for ((name, kind), worker) in &inner.workers {
            let wakes = (*kind == ProbeKind::Readiness && unready.contains(name))
                || (worker.resting.load(Relaxed) && renewed.contains(name));
            if wakes {
                worker.wake.notify_one();
            }
        }
    }

    /// The pod is being stopped: liveness and startup probes end. Readiness probes continue, and so do all probes of sidecars, which run until
    /// the other containers have exited.
    pub fn begin_stopping(&self) {
        if std::mem::replace(&mut self.shared.state.lock().stopping, true) {
            return;
        }
        for worker in self.inner.lock().workers.values().filter(|worker| !worker.outlasts) {
            worker.wake.notify_one();
        }
    }

    /// The results of all probes.
    pub fn results(&self) -> ProbeResults {
        self.shared.state.lock().probe_results.clone()
    }

    /// A counter that changes when a result requires a sync of the pod: any result of readiness and startup, and a failure of liveness.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
}

// === impl ProbeWorkers ===

impl ProbeWorkers {
    /// Starts the probes of a container that are not running.
    fn start(&mut self, container: &PodContainer<'_>, shared: &Arc<PodProbeContext>) {
        let mut whole: Option<Arc<Container>> = None;
        for (kind, probe) in probes(&container.spec) {
            let key = (container.spec.name.clone(), kind);
            if !probe || self.workers.contains_key(&key) {
                continue;
            }
            let sidecar = container.role == Role::Sidecar;
            let worker = Arc::new(ProbeWorker {
                kind,
                container: whole.get_or_insert_with(|| Arc::new(container.spec.as_ref().clone())).clone(),
                outlasts: sidecar || kind == ProbeKind::Readiness,
                sidecar,
                wake: Notify::new(),
                resting: false.into(),
            });
            self.tasks.spawn(worker.clone().run(shared.clone()));
            self.workers.insert(key, worker);
        }
    }
}

fn probes(container: &Container) -> [(ProbeKind, bool); 3] {
    [
        (ProbeKind::Startup, container.startup_probe.is_some()),
        (ProbeKind::Readiness, container.readiness_probe.is_some()),
        (ProbeKind::Liveness, container.liveness_probe.is_some()),
    ]
}

/// Whether a container has probes that are run.
fn is_probed(container: &PodContainer<'_>) -> bool {
    matches!(container.role, Role::Regular | Role::Sidecar)
        && probes(&container.spec).iter().any(|(_, there)| *there)
}

/// The current instance of a container; `None` if none was started.
fn target(
    pod: &Pod,
    container: &PodContainer<'_>,
    snapshot: &Snapshot,
    status: &PodStatus,
) -> Option<ProbeTarget> {
    let newest = snapshot.newest(&container.spec.name)?;
    if newest.state == ContainerState::Created {
        return None;
    }
    let running = newest.state == ContainerState::Running;
    Some(ProbeTarget {
        id: newest.id.clone(),
        running: running.then(|| newest.started.unwrap_or(newest.created)),
        is_restarted: is_restarted(pod, container, newest),
        started: running && has_started(status, &container.spec.name),
    })
}

fn has_started(status: &PodStatus, name: &str) -> bool {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let of_this_name = |status: &&ContainerStatus| status.name == name;
    all.into_iter().find(of_this_name).and_then(|status| status.started).unwrap_or(false)
}

/// Whether an exited container is restarted.
fn is_restarted(pod: &Pod, container: &PodContainer<'_>, record: &snapshot::Container) -> bool {
    let rules = container.spec.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty());
    let own = container.spec.restart_policy.as_deref();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    match own.or(of_pod) {
        Some("Never") => rules,
        Some("OnFailure") => rules || record.exit_code != 0,
        _ => true,
    }
}
