//! Tables of pods, runtime states and the resulting plans, in a short notation.

mod backoffs;
mod clocks;
mod garbage;
mod inits;
mod kubelet;
mod regular;
mod simulation;
mod stops;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container as Spec, ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, Pod,
        PodSpec, PodStatus, Probe,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{CrashBackoffs, PlanInput, PodPlan, SandboxPlan, compute_plan};
use crate::{
    containers::spec_hash,
    probe::result::{ProbeKind, ProbeResult, ProbeResults},
    snapshot::{Container, ContainerState, Sandbox, SandboxState, Snapshot, annotation},
};

/// The current time.
const NOW: i64 = 1_000_000;

/// A test case.
struct Case {
    pod: Pod,
    snapshot: Snapshot,
    probe_results: ProbeResults,
    backoffs: CrashBackoffs,
    now: Timestamp,
}

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn spec(name: &str) -> Spec {
    let (name, sidecar) = name.strip_prefix('+').map_or((name, false), |name| (name, true));
    let restart_policy = sidecar.then(|| "Always".to_owned());
    Spec {
        name: name.to_owned(),
        image: Some("registry/image:1".to_owned()),
        restart_policy,
        ..Spec::default()
    }
}

/// A pod whose init containers and regular containers have these names; `+` marks a sidecar.
pub(super) fn pod(policy: &str, inits: &str, regular: &str) -> Pod {
    let specs = |names: &str| names.split_whitespace().map(spec).collect::<Vec<_>>();
    Pod {
        metadata: ObjectMeta {
            name: Some("web".to_owned()),
            namespace: Some("shop".to_owned()),
            uid: Some("u-1".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            restart_policy: Some(policy.to_owned()),
            init_containers: Some(specs(inits)),
            containers: specs(regular),
            termination_grace_period_seconds: Some(30),
            ..PodSpec::default()
        }),
        status: None,
    }
}

pub(super) fn sandbox(id: &str, attempt: u32, created: i64) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        attempt,
        state: SandboxState::Ready,
        created: at(created),
        ips: vec!["10.0.0.7".parse().unwrap()],
        host_network: false,
        handler: String::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

pub(super) fn container(name: &str, attempt: u32, sandbox: &str, created: i64) -> Container {
    let noted = [
        (annotation::HASH, format!("{:x}", spec_hash(&spec(name)))),
        (annotation::RESTART_COUNT, attempt.to_string()),
    ];
    Container {
        id: format!("{name}-{attempt}"),
        name: name.to_owned(),
        attempt,
        sandbox: sandbox.to_owned(),
        state: ContainerState::Running,
        created: at(created),
        started: Some(at(created)),
        finished: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: "registry/image:1".to_owned(),
        image_ref: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        user: None,
        mounts: Vec::new(),
        labels: BTreeMap::new(),
        annotations: noted.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

/// A pod in a ready sandbox with these records, the oldest first: `name=running`, `name=created`, `name=unknown`, `name=exited:5`.
fn case(policy: &str, inits: &str, regular: &str, records: &str) -> Case {
    let mut case = Case {
        pod: pod(policy, inits, regular),
        snapshot: Snapshot { sandboxes: vec![sandbox("s0", 0, NOW - 1000)], containers: Vec::new() },
        probe_results: ProbeResults::default(),
        backoffs: CrashBackoffs::new(Duration::from_mins(5)),
        now: at(NOW),
    };
    for (age, record) in records.split_whitespace().enumerate() {
        case.record(record, "s0", NOW - 900 + i64::try_from(age).unwrap());
    }
    case
}

impl Case {
    fn record(&mut self, record: &str, sandbox: &str, created: i64) {
        let (name, state) = record.split_once('=').unwrap();
        let before = self.snapshot.containers.iter().filter(|before| before.name == name);
        let attempt = before.map(|before| before.attempt + 1).max().unwrap_or(0);
        let mut record = container(name, attempt, sandbox, created);
        let (state, code) = state.split_once(':').unwrap_or((state, "0"));
        record.state = match state {
            "running" => ContainerState::Running,
            "created" => ContainerState::Created,
            "unknown" => ContainerState::Unknown,
            "exited" => ContainerState::Exited,
            other => panic!("{other}"),
        };
        if record.state == ContainerState::Exited {
            record.exit_code = code.parse().unwrap();
            record.finished = Some(at(created + 1));
        }
        self.snapshot.containers.push(record);
        self.snapshot.sort();
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn spec(&mut self) -> &mut PodSpec {
        self.pod.spec.as_mut().unwrap()
    }

    fn any(&mut self, name: &str) -> &mut Spec {
        let spec = self.spec();
        let all = spec.init_containers.as_mut().unwrap().iter_mut().chain(&mut spec.containers);
        all.into_iter().find(|container| container.name == name).unwrap()
    }

    fn status(&mut self) -> &mut PodStatus {
        self.pod.status.get_or_insert_default()
    }

    fn ephemeral(mut self, name: &str) -> Self {
        let ephemeral = EphemeralContainer { name: name.to_owned(), ..EphemeralContainer::default() };
        self.spec().ephemeral_containers.get_or_insert_default().push(ephemeral);
        self
    }

    fn policy_of(mut self, name: &str, policy: &str) -> Self {
        self.any(name).restart_policy = Some(policy.to_owned());
        self
    }

    fn rule(mut self, name: &str, action: &str, operator: &str, values: &[i32]) -> Self {
        let exit_codes =
            ContainerRestartRuleOnExitCodes { operator: operator.to_owned(), values: Some(values.to_vec()) };
        let rule = ContainerRestartRule { action: action.to_owned(), exit_codes: Some(exit_codes) };
        self.any(name).restart_policy_rules.get_or_insert_default().push(rule);
        self
    }

    fn probed(mut self, name: &str, kind: ProbeKind, result: Option<ProbeResult>) -> Self {
        let container = self.any(name);
        match kind {
            ProbeKind::Liveness => container.liveness_probe = Some(Probe::default()),
            ProbeKind::Readiness => container.readiness_probe = Some(Probe::default()),
            ProbeKind::Startup => container.startup_probe = Some(Probe::default()),
        }
        let id = self.snapshot.newest(name).unwrap().id.clone();
        if let Some(result) = result {
            self.probe_results.set(&id, kind, result);
        }
        self
    }

    fn dead_sandbox(self) -> Self {
        self.with(|case| case.snapshot.sandboxes[0].state = SandboxState::NotReady)
    }

    fn deleted(self) -> Self {
        self.with(|case| case.pod.metadata.deletion_timestamp = Some(Time(at(NOW + 30))))
    }

    fn plan(&self) -> PodPlan {
        compute_plan(&PlanInput {
            pod: &self.pod,
            snapshot: &self.snapshot,
            probe_results: &self.probe_results,
            backoffs: &self.backoffs,
            now: self.now,
        })
    }

    /// The plan in short notation.
    fn summary(&self) -> String {
        let plan = self.plan();
        let mut words = Vec::new();
        words.extend(plan.stop_all.then(|| "stop-all".to_owned()));
        words.extend(plan.stop.iter().map(|stop| format!("stop:{}", stop.id)));
        words.extend(plan.remove.iter().map(|remove| format!("remove:{}", remove.id)));
        words.push(match &plan.sandbox {
            SandboxPlan::Keep(id) => format!("keep:{id}"),
            SandboxPlan::Create { attempt, replaces: None } => format!("create:{attempt}"),
            SandboxPlan::Create { attempt, replaces: Some(id) } => format!("create:{attempt}-for-{id}"),
            SandboxPlan::None => "over".to_owned(),
        });
        words.extend(plan.start.iter().map(|start| format!("start:{}", start.name)));
        words.extend(plan.deferred.iter().map(|deferred| format!("hold:{}", deferred.name)));
        words.join(" ")
    }
}

#[track_caller]
fn table(cases: Vec<(&str, Case, &str)>) {
    for (what, case, expected) in cases {
        assert_eq!(case.summary(), expected, "{what}");
    }
}
