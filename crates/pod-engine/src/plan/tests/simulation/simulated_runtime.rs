//! The simulated runtime with its pod, and its invariants.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{EphemeralContainer, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    super::{at, container, sandbox},
    event::{Event, Fault},
};
use crate::{
    containers::{Role, find_container, pod_containers, spec_hash},
    plan::{
        CrashBackoffs, PlanInput, PodPlan, SandboxPlan, StartContainer, StopReason, compute_plan,
        find_garbage, should_restart, stop_order,
    },
    probe::result::{ProbeKind, ProbeResult, ProbeResults},
    snapshot::{Container, ContainerState, SandboxState, Snapshot, annotation},
};

pub(super) struct SimulatedRuntime {
    pod: Pod,
    snapshot: Snapshot,
    probe_results: ProbeResults,
    backoffs: CrashBackoffs,
    now: Timestamp,
    made: u32,
    logs: BTreeSet<(String, u32)>,
    /// Completed init containers and started sidecars, by sandbox.
    passed: BTreeSet<(String, String)>,
    ephemeral: BTreeMap<String, u32>,
    /// Whether the status of a finished pod is final.
    told: bool,
    over: bool,
}

/// Whether a plan has no action to take now.
fn is_idle(plan: &PodPlan) -> bool {
    !plan.stop_all
        && plan.stop.is_empty()
        && plan.remove.is_empty()
        && plan.start.is_empty()
        && !matches!(plan.sandbox, SandboxPlan::Create { .. })
}

/// Checks the invariants of a plan.
pub(super) fn check(pod: &Pod, snapshot: &Snapshot, plan: &PodPlan, now: Timestamp) {
    let ready: Vec<_> =
        snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).collect();
    match &plan.sandbox {
        SandboxPlan::Keep(id) => {
            assert!(!plan.stop_all, "{plan:?}");
            assert!(ready.len() == 1 && ready[0].id == *id, "{plan:?}");
        }
        SandboxPlan::Create { attempt, .. } => {
            assert!(
                snapshot.sandboxes.first().is_none_or(|newest| *attempt == newest.attempt + 1),
                "{plan:?}"
            );
            assert_eq!(plan.stop_all, !snapshot.sandboxes.is_empty() || snapshot.is_live(), "{plan:?}");
            assert!(plan.stop.is_empty(), "{plan:?}");
        }
        SandboxPlan::None => {
            assert!(plan.start.is_empty() && plan.deferred.is_empty() && plan.stop.is_empty(), "{plan:?}");
            assert_eq!(plan.stop_all, snapshot.is_live(), "{plan:?}");
        }
    }
    let mut names = BTreeSet::new();
    for name in
        plan.start.iter().map(|start| &start.name).chain(plan.deferred.iter().map(|deferred| &deferred.name))
    {
        assert!(names.insert(name), "{name} twice in {plan:?}");
        assert!(find_container(pod, name).is_some(), "{name} in {plan:?}");
    }
    let roles: Vec<_> = plan
        .start
        .iter()
        .map(|start| {
            [Role::Ephemeral, Role::Init, Role::Regular]
                .into_iter()
                .position(|role| role == start.role || (role == Role::Init && start.role == Role::Sidecar))
        })
        .collect();
    assert!(roles.is_sorted(), "{plan:?}");
    for deferred in &plan.deferred {
        assert!(deferred.until > now, "{plan:?}");
        assert!(plan.next_deadline.is_some_and(|time| time <= deferred.until), "{plan:?}");
    }
    let mut stopped = BTreeSet::new();
    for stop in &plan.stop {
        assert!(stopped.insert(&stop.id), "{plan:?}");
        assert!(snapshot.container(&stop.id).is_some_and(Container::may_run), "{plan:?}");
    }
    for remove in &plan.remove {
        let container = snapshot.container(&remove.id).expect("what is removed is there");
        let dead =
            container.state != ContainerState::Running || plan.stop_all || stopped.contains(&container.id);
        assert!(dead, "{plan:?}");
    }
}

impl SimulatedRuntime {
    pub(super) fn new(pod: Pod, told: bool) -> Self {
        // The sandbox rules use only the pod's policy: the policy of a container shows only in the status.
        let own = pod_containers(&pod)
            .any(|container| container.role != Role::Sidecar && container.spec.restart_policy.is_some());
        Self {
            pod,
            snapshot: Snapshot::default(),
            probe_results: ProbeResults::default(),
            backoffs: CrashBackoffs::new(Duration::from_mins(5)),
            now: at(1_000_000),
            made: 0,
            logs: BTreeSet::new(),
            passed: BTreeSet::new(),
            ephemeral: BTreeMap::new(),
            told: told || own,
            over: false,
        }
    }

    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Sync(fault) => {
                self.sync(fault);
            }
            Event::Exit(which, code) => {
                let live =
                    self.ids(|state| matches!(state, ContainerState::Running | ContainerState::Unknown));
                if !live.is_empty() {
                    self.end(&live[which.index(live.len())], code);
                }
            }
            Event::ProbeResult(which, kind, result) => {
                let running = self.ids(|state| state == ContainerState::Running);
                if !running.is_empty() {
                    self.probe_results.set(&running[which.index(running.len())], kind, result);
                }
            }
            Event::LateStart(which) => {
                let mut created = self.ids(|state| state == ContainerState::Created);
                let live = |name: &str| {
                    self.snapshot.containers.iter().any(|other| other.name == name && other.may_run())
                };
                created.retain(|id| !live(&self.snapshot.container(id).unwrap().name));
                if !created.is_empty() {
                    self.set(&created[which.index(created.len())], ContainerState::Running);
                }
            }
            Event::Vanish(which) => {
                let running = self.ids(|state| state == ContainerState::Running);
                if !running.is_empty() {
                    self.set(&running[which.index(running.len())], ContainerState::Unknown);
                }
            }
            Event::Wait(seconds) => self.wait(SignedDuration::from_secs(seconds.into())),
            Event::Garbage => self.remove_garbage(),
            Event::SandboxDies => {
                if let Some(id) = self.snapshot.sandboxes.first().map(|sandbox| sandbox.id.clone()) {
                    self.stop_sandbox(&id);
                }
            }
            Event::Change(which) => {
                let spec = self.pod.spec.as_mut().unwrap();
                let mut all: Vec<_> =
                    spec.init_containers.iter_mut().flatten().chain(&mut spec.containers).collect();
                let which = which.index(all.len());
                all[which].image.as_mut().unwrap().push('1');
            }
            Event::Ephemeral => {
                let list = self.pod.spec.as_mut().unwrap().ephemeral_containers.get_or_insert_default();
                let name = format!("e{}", list.len());
                list.push(EphemeralContainer { name, ..EphemeralContainer::default() });
            }
            Event::Restart => {
                self.probe_results = ProbeResults::default();
                self.backoffs = CrashBackoffs::new(Duration::from_mins(5));
                self.backoffs.adopt(&self.pod, &self.snapshot, self.now);
            }
            Event::Forget => {
                self.snapshot = Snapshot::default();
                self.ephemeral.clear();
                self.over &= self.told;
            }
            Event::Delete => {
                self.pod.metadata.deletion_timestamp = Some(Time(self.now));
            }
        }
        self.check_instances();
    }

    /// Without further faults the pod converges, and then there are no more actions.
    pub(super) fn converge(&mut self) {
        for _ in 0..100 {
            for id in self.ids(|state| state == ContainerState::Running) {
                let name = self.snapshot.container(&id).unwrap().name.clone();
                let container = find_container(&self.pod, &name).unwrap();
                let ends = match container.role {
                    Role::Init => true,
                    Role::Regular => !should_restart(&self.pod, &container.spec, 0),
                    Role::Sidecar | Role::Ephemeral => false,
                };
                if ends {
                    self.end(&id, 0);
                }
                self.probe_results.set(&id, ProbeKind::Startup, ProbeResult::Success);
                self.probe_results.set(&id, ProbeKind::Liveness, ProbeResult::Success);
            }
            self.check_instances();
            let plan = self.sync(None);
            let ends = self.ids(|state| state == ContainerState::Running).iter().any(|id| {
                let container =
                    find_container(&self.pod, &self.snapshot.container(id).unwrap().name).unwrap();
                container.role == Role::Init
                    || (container.role == Role::Regular && !should_restart(&self.pod, &container.spec, 0))
            });
            if is_idle(&plan) && plan.deferred.is_empty() && !ends {
                return self.check_converged();
            }
            let pause =
                plan.next_deadline.map_or(SignedDuration::from_secs(1), |time| time.duration_since(self.now));
            self.wait(pause.max(SignedDuration::from_millis(1)));
        }
        panic!("it does not come to rest: {:?}\n{:?}\n{:?}", self.plan(), self.snapshot, self.pod.spec);
    }

    fn check_converged(&mut self) {
        let before = self.snapshot.clone();
        let plan = self.sync(None);
        assert!(is_idle(&plan), "{plan:?}");
        assert_eq!(self.snapshot, before);
        if plan.sandbox == SandboxPlan::None {
            assert!(!self.snapshot.is_live());
            return;
        }
        assert!(self.pod.metadata.deletion_timestamp.is_none());
        // Sorted as for a plan: a container that started late may be older than one that has exited.
        let mut snapshot = before;
        snapshot.sort();
        for container in pod_containers(&self.pod) {
            let newest = snapshot.newest(&container.spec.name);
            let running = newest.is_some_and(|newest| newest.state == ContainerState::Running);
            match container.role {
                Role::Sidecar => assert!(running, "{newest:?}"),
                Role::Regular => {
                    let newest = newest.expect("it was started");
                    let stays = newest.state == ContainerState::Exited
                        && !should_restart(&self.pod, &container.spec, newest.exit_code);
                    assert!(running || stays, "{newest:?}");
                }
                Role::Init => {}
                Role::Ephemeral => assert!(newest.is_some()),
            }
        }
    }

    fn plan(&self) -> PodPlan {
        let mut snapshot = self.snapshot.clone();
        snapshot.sort();
        let plan = compute_plan(&PlanInput {
            pod: &self.pod,
            snapshot: &snapshot,
            probe_results: &self.probe_results,
            backoffs: &self.backoffs,
            now: self.now,
        });
        check(&self.pod, &snapshot, &plan, self.now);
        let ended = self.over || self.pod.metadata.deletion_timestamp.is_some();
        assert!(!ended || plan.sandbox == SandboxPlan::None, "it has ended: {plan:?}\n{:?}", self.snapshot);
        plan
    }

    fn sync(&mut self, fault: Option<Fault>) -> PodPlan {
        let plan = self.plan();
        assert_eq!(plan, self.plan());
        if self.carry_out(&plan, fault).is_some() && plan.sandbox == SandboxPlan::None {
            assert!(!self.snapshot.is_live());
            self.over = true;
            if self.told {
                self.pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
            }
        }
        self.check_instances();
        plan
    }

    fn carry_out(&mut self, plan: &PodPlan, fault: Option<Fault>) -> Option<()> {
        let mut stops: Vec<String> = plan.stop.iter().map(|stop| stop.id.clone()).collect();
        if plan.stop_all {
            stops = stop_order(Some(&self.pod), &self.snapshot).into_iter().map(|turn| turn.id).collect();
        }
        for (index, id) in stops.iter().enumerate() {
            if fault == Some(Fault::StopAfter(index)) {
                return None;
            }
            self.end(id, 137);
        }
        if plan.stop_all {
            for id in self.snapshot.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect::<Vec<_>>() {
                self.stop_sandbox(&id);
            }
        }
        let anew = plan.stop.iter().any(|stop| stop.reason == StopReason::RestartAll)
            || plan.remove.iter().any(|remove| remove.keep_log);
        if anew {
            self.passed.clear();
        }
        for remove in plan.remove.iter().filter(|_| fault != Some(Fault::NoRemoval)) {
            self.remove(&remove.id, remove.keep_log);
        }
        let into = match &plan.sandbox {
            SandboxPlan::Keep(id) => id.clone(),
            SandboxPlan::None => return Some(()),
            SandboxPlan::Create { .. } if fault == Some(Fault::NoSandbox) => return None,
            SandboxPlan::Create { attempt, .. } => {
                self.made += 1;
                let mut made = sandbox(&format!("s{}", self.made), *attempt, self.now.as_second());
                made.created = self.tick();
                if fault == Some(Fault::HalfASandbox) {
                    made.state = SandboxState::NotReady;
                }
                self.snapshot.sandboxes.insert(0, made.clone());
                if fault == Some(Fault::HalfASandbox) {
                    return None;
                }
                made.id
            }
        };
        for (index, start) in plan.start.iter().enumerate() {
            self.backoffs.begin(start, self.now);
            let works = self.start(start, &into, fault, index);
            if !works && start.role == Role::Init {
                return None;
            }
        }
        Some(())
    }

    fn start(&mut self, start: &StartContainer, into: &str, fault: Option<Fault>, index: usize) -> bool {
        let name = &start.name;
        let live =
            self.snapshot.containers.iter().find(|container| container.name == *name && container.may_run());
        assert!(live.is_none(), "{name} runs already: {live:?}");
        assert!(
            self.pod.metadata.deletion_timestamp.is_none() && !self.over,
            "{name} starts in a pod that has ended"
        );
        let sandbox = self.snapshot.sandboxes.iter().find(|sandbox| sandbox.id == into).unwrap();
        assert_eq!(sandbox.state, SandboxState::Ready, "{name} starts in a dead sandbox");
        self.check_order(start, into);
        if fault == Some(Fault::NoImageFor(index)) {
            return false;
        }
        let logged = self.logs.iter().filter(|(whose, _)| whose == name).map(|(_, count)| count + 1);
        let count = start.restarts.unwrap_or_else(|| logged.max().unwrap_or(0));
        assert!(self.logs.insert((name.clone(), count)), "{name} writes its log {count} again");
        if start.role == Role::Ephemeral {
            *self.ephemeral.entry(name.clone()).or_default() += 1;
            assert_eq!(self.ephemeral[name], 1, "{name} is started again");
        }
        self.made += 1;
        let mut made = container(name, count, into, self.now.as_second());
        made.id = format!("{name}-{count}-{}", self.made);
        let spec = find_container(&self.pod, name).unwrap().spec;
        made.annotations.insert(annotation::HASH.to_owned(), format!("{:x}", spec_hash(&spec)));
        made.created = self.tick();
        let id = made.id.clone();
        made.state = if fault == Some(Fault::OnlyMade(index)) {
            ContainerState::Created
        } else {
            ContainerState::Running
        };
        self.snapshot.containers.insert(0, made);
        if fault == Some(Fault::EndsAtOnce(index)) {
            self.end(&id, 128);
        }
        !matches!(fault, Some(Fault::OnlyMade(at) | Fault::EndsAtOnce(at)) if at == index)
    }

    /// Earlier init containers have passed in the same sandbox.
    fn check_order(&mut self, start: &StartContainer, into: &str) {
        self.check_instances();
        let before = pod_containers(&self.pod).take_while(|container| container.spec.name != start.name);
        if start.role == Role::Ephemeral {
            return;
        }
        for container in before.filter(|container| matches!(container.role, Role::Init | Role::Sidecar)) {
            let passed = self.passed.contains(&(into.to_owned(), container.spec.name.clone()));
            assert!(passed, "{} starts before {} has passed in {into}", start.name, container.spec.name);
        }
    }

    /// Records completed init containers and started sidecars, and checks that no container runs twice.
    fn check_instances(&mut self) {
        let mut live = BTreeSet::new();
        for record in &self.snapshot.containers {
            assert!(!record.may_run() || live.insert(&record.name), "{} runs twice", record.name);
            let Some(container) = find_container(&self.pod, &record.name) else { continue };
            let started = container.spec.startup_probe.is_none()
                || self.probe_results.get(&record.id, ProbeKind::Startup) == Some(ProbeResult::Success);
            let passed = match container.role {
                Role::Init => record.state == ContainerState::Exited && record.exit_code == 0,
                Role::Sidecar => record.state == ContainerState::Running && started,
                Role::Regular | Role::Ephemeral => false,
            };
            if passed {
                self.passed.insert((record.sandbox.clone(), record.name.clone()));
            }
        }
    }

    fn ids(&self, wanted: impl Fn(ContainerState) -> bool) -> Vec<String> {
        let chosen = self.snapshot.containers.iter().filter(|container| wanted(container.state));
        chosen.map(|container| container.id.clone()).collect()
    }

    fn set(&mut self, id: &str, state: ContainerState) {
        let container = self.snapshot.containers.iter_mut().find(|container| container.id == id).unwrap();
        container.state = state;
    }

    fn end(&mut self, id: &str, code: i32) {
        let finished = self.tick();
        let container = self.snapshot.containers.iter_mut().find(|container| container.id == id).unwrap();
        container.state = ContainerState::Exited;
        container.exit_code = code;
        container.finished = Some(finished);
    }

    fn stop_sandbox(&mut self, id: &str) {
        let inside = self
            .snapshot
            .containers
            .iter()
            .filter(|container| container.sandbox == id && container.may_run());
        for inside in inside.map(|container| container.id.clone()).collect::<Vec<_>>() {
            self.end(&inside, 137);
        }
        let sandbox = self.snapshot.sandboxes.iter_mut().find(|sandbox| sandbox.id == id).unwrap();
        sandbox.state = SandboxState::NotReady;
    }

    fn remove(&mut self, id: &str, keep_log: bool) {
        let container = self.snapshot.container(id).expect("it is there");
        let log = (container.name.clone(), container.restart_count());
        if !keep_log {
            self.logs.remove(&log);
        }
        self.snapshot.containers.retain(|container| container.id != id);
    }

    fn remove_garbage(&mut self) {
        let garbage = find_garbage(true, &self.snapshot, self.now);
        for stop in garbage.stop {
            self.end(&stop.id, 137);
        }
        for remove in garbage.containers {
            self.remove(&remove.id, remove.keep_log);
        }
        for id in garbage.sandboxes {
            self.snapshot.sandboxes.retain(|sandbox| sandbox.id != id);
        }
        self.backoffs.prune(self.now);
    }

    fn wait(&mut self, time: SignedDuration) {
        self.now = self.now.checked_add(time).unwrap();
    }

    /// Time advances with each event.
    fn tick(&mut self) -> Timestamp {
        self.wait(SignedDuration::from_millis(1));
        self.now
    }
}
