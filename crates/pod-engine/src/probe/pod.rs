//! All probes of one pod.

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
    Tell,
    machine::Target,
    prober::Prober,
    verdict::{Kind, Verdict, Verdicts},
    worker::Worker,
};
use crate::{
    parts::{Part, Role, parts},
    snapshot::{self, ContainerState, Snapshot},
};

/// The probes of a pod. When this is dropped they end, also one that is just being made.
pub struct Probes {
    pub(super) shared: Arc<Shared>,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) workers: BTreeMap<(String, Kind), Arc<Worker>>,
    pub(super) tasks: JoinSet<()>,
}

/// What the pod's tasks share.
pub(super) struct Shared {
    pub(super) prober: Arc<Prober>,
    pub(super) pod: PodRef,
    pub(super) tell: Tell,
    pub(super) state: Mutex<State>,
    changes: watch::Sender<u64>,
}

/// What was found out about the pod, and what the probes found out.
#[derive(Default)]
pub(super) struct State {
    pub(super) verdicts: Verdicts,
    pub(super) targets: BTreeMap<String, Target>,
    pub(super) ip: Option<String>,
    pub(super) over: bool,
    pub(super) stopping: bool,
}

// === impl Shared ===

impl Shared {
    /// Lets the pod's owner know.
    pub(super) fn changed(&self, changed: bool) {
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

// === impl Probes ===

impl Probes {
    /// The probes of this pod, none of which has begun.
    pub fn new(prober: Arc<Prober>, pod: PodRef, tell: Tell) -> Self {
        let (changes, _) = watch::channel(0);
        let shared = Shared { prober, pod, tell, state: Mutex::default(), changes };
        Self { shared: Arc::new(shared), inner: Mutex::default() }
    }

    /// Takes notice of the pod: to be called whenever its status was computed, and before containers are started, so that their
    /// probes are in step with those of a kubelet. Readiness is probed at once where a container could be ready and is not.
    pub fn sync(&self, pod: &Pod, snapshot: &Snapshot, status: &PodStatus) {
        let probed: Vec<Part<'_>> = parts(pod).filter(is_probed).collect();
        let over = vk_provider::pod::is_terminal_phase(status.phase.as_deref());
        let mut renewed = Vec::new();
        let mut unready = Vec::new();
        let stopping = {
            let mut state = self.shared.state.lock();
            state.over = over;
            state.ip = status.pod_ip.clone().filter(|ip| !ip.is_empty());
            for part in &probed {
                let name = &part.container.name;
                let target = target(pod, part, snapshot, status);
                let Some(target) = target else {
                    state.targets.remove(name);
                    continue;
                };
                let verdict = state.verdicts.get(&target.id, Kind::Readiness);
                if target.running.is_some() && target.started && verdict != Some(Verdict::Success) {
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
            self.stopping();
        }
        let mut inner = self.inner.lock();
        if !over && !stopping {
            for part in &probed {
                inner.begin(part, &self.shared);
            }
        }
        for ((name, kind), worker) in &inner.workers {
            let nudged = (*kind == Kind::Readiness && unready.contains(name))
                || (worker.resting.load(Relaxed) && renewed.contains(name));
            if nudged {
                worker.nudge.notify_one();
            }
        }
    }

    /// The pod is being stopped: its liveness and startup do not matter any more. Readiness is probed on, and so is everything of
    /// sidecars, which run until the others have ended.
    pub fn stopping(&self) {
        if std::mem::replace(&mut self.shared.state.lock().stopping, true) {
            return;
        }
        for worker in self.inner.lock().workers.values().filter(|worker| !worker.outlasts) {
            worker.nudge.notify_one();
        }
    }

    /// What was found out.
    pub fn verdicts(&self) -> Verdicts {
        self.shared.state.lock().verdicts.clone()
    }

    /// A number that moves when a verdict changed that the pod has to be looked at for: any on readiness and startup, and a failure
    /// of liveness.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
}

// === impl Inner ===

impl Inner {
    /// Starts the tasks of a container's probes that have none.
    fn begin(&mut self, part: &Part<'_>, shared: &Arc<Shared>) {
        let mut whole: Option<Arc<Container>> = None;
        for (kind, probe) in probes(&part.container) {
            let key = (part.container.name.clone(), kind);
            if !probe || self.workers.contains_key(&key) {
                continue;
            }
            let sidecar = part.role == Role::Sidecar;
            let worker = Arc::new(Worker {
                kind,
                container: whole.get_or_insert_with(|| Arc::new(part.container.as_ref().clone())).clone(),
                outlasts: sidecar || kind == Kind::Readiness,
                sidecar,
                nudge: Notify::new(),
                resting: false.into(),
            });
            self.tasks.spawn(worker.clone().run(shared.clone()));
            self.workers.insert(key, worker);
        }
    }
}

fn probes(container: &Container) -> [(Kind, bool); 3] {
    [
        (Kind::Startup, container.startup_probe.is_some()),
        (Kind::Readiness, container.readiness_probe.is_some()),
        (Kind::Liveness, container.liveness_probe.is_some()),
    ]
}

/// Whether a container's probes count, and there are any.
fn is_probed(part: &Part<'_>) -> bool {
    matches!(part.role, Role::Regular | Role::Sidecar)
        && probes(&part.container).iter().any(|(_, there)| *there)
}

/// The container of a name, as it is now; `None` while there is none that was started.
fn target(pod: &Pod, part: &Part<'_>, snapshot: &Snapshot, status: &PodStatus) -> Option<Target> {
    let newest = snapshot.newest(&part.container.name)?;
    if newest.state == ContainerState::Created {
        return None;
    }
    let running = newest.state == ContainerState::Running;
    Some(Target {
        id: newest.id.clone(),
        running: running.then(|| newest.started.unwrap_or(newest.created)),
        returns: returns(pod, part, newest),
        started: running && has_started(status, &part.container.name),
    })
}

fn has_started(status: &PodStatus, name: &str) -> bool {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let of_this_name = |status: &&ContainerStatus| status.name == name;
    all.into_iter().find(of_this_name).and_then(|status| status.started).unwrap_or(false)
}

/// Whether another container will be started in place of one that has ended.
fn returns(pod: &Pod, part: &Part<'_>, container: &snapshot::Container) -> bool {
    let rules = part.container.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty());
    let own = part.container.restart_policy.as_deref();
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    match own.or(of_pod) {
        Some("Never") => rules,
        Some("OnFailure") => rules || container.exit_code != 0,
        _ => true,
    }
}
