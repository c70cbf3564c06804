//! Fixtures of status tests: a pod, records of the runtime, and the resulting status.

mod cases;
mod lifecycle;
mod phases;
mod property;
mod report;
mod whole;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodCondition, ResourceRequirements};
use serde_json::{Value, json};

use super::*;
use crate::{
    probe::{ProbeKind, ProbeResult},
    snapshot::{self, Container, ContainerState},
};

/// A pod and everything around it.
struct StatusFixture {
    pod: Pod,
    snapshot: Snapshot,
    probe_results: ProbeResults,
    failures: FailureReasons,
    previous: Option<PodStatus>,
    failed: Option<FailureReason>,
    node_ips: Vec<IpAddr>,
    terminated: bool,
    since: Option<Timestamp>,
    now: Timestamp,
}

fn time(text: &str) -> Timestamp {
    format!("2026-01-01T{text}Z").parse().expect("a time")
}

/// A fixture of a pod with this spec, before anything was done about it.
#[expect(clippy::needless_pass_by_value, reason = "reads better")]
fn fixture(spec: Value) -> StatusFixture {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "generation": 1},
        "spec": spec,
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    });
    StatusFixture {
        pod: serde_json::from_value(pod).expect("a pod"),
        snapshot: Snapshot::default(),
        probe_results: ProbeResults::default(),
        failures: FailureReasons::new(),
        previous: None,
        failed: None,
        node_ips: vec!["10.0.0.1".parse().expect("an address")],
        terminated: false,
        since: None,
        now: time("00:00:10"),
    }
}

/// Containers `a` and `b`.
fn two_containers(policy: &str) -> Value {
    json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "one"}, {"name": "b", "image": "two"}]})
}

impl StatusFixture {
    fn compute(&self) -> PodStatus {
        compute_status(&StatusInput {
            pod: &self.pod,
            snapshot: &self.snapshot,
            probe_results: &self.probe_results,
            failures: &self.failures,
            previous: self.previous.as_ref(),
            node_ips: &self.node_ips,
            runtime: "containerd",
            recursive_read_only: true,
            failed: self.failed.as_ref(),
            terminated: self.terminated,
            since: self.since,
            now: self.now,
        })
    }

    /// Computes the status, keeps it, and stores it in the API server.
    fn step(&mut self) -> PodStatus {
        let status = self.compute();
        self.previous = Some(status.clone());
        self.pod.status = Some(reported_status(&status, self.pod.status.as_ref(), self.snapshot.is_live()));
        status
    }

    /// A sandbox that is ready, newer than the others.
    fn sandbox(mut self) -> Self {
        self.sandbox_again();
        self
    }

    fn sandbox_again(&mut self) {
        let attempt = u32::try_from(self.snapshot.sandboxes.len()).expect("few");
        self.stop_sandboxes();
        self.snapshot.sandboxes.insert(
            0,
            Sandbox {
                id: format!("sandbox-{attempt}"),
                attempt,
                state: SandboxState::Ready,
                created: time("00:00:01"),
                ips: vec!["10.1.0.5".parse().expect("an address")],
                host_network: false,
                handler: String::new(),
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
            },
        );
    }

    fn stop_sandboxes(&mut self) {
        self.snapshot.sandboxes.iter_mut().for_each(|sandbox| sandbox.state = SandboxState::NotReady);
    }

    /// A record of a container, newer than the others. Its id is its name and its number.
    fn record(mut self, name: &str, state: RecordState) -> Self {
        self.add_record(name, state);
        self
    }

    fn add_record(&mut self, name: &str, state: RecordState) {
        let attempt = self.snapshot.containers.iter().filter(|one| one.name == name).count();
        let attempt = u32::try_from(attempt).expect("few");
        let sandbox = self.snapshot.sandboxes.first().map(|sandbox| sandbox.id.clone()).unwrap_or_default();
        let mut container = Container {
            id: format!("{name}-{attempt}"),
            name: name.to_owned(),
            attempt,
            sandbox,
            state: ContainerState::Created,
            created: time("00:00:02"),
            started: None,
            finished: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: format!("registry.example/{name}:1"),
            image_ref: format!("registry.example/{name}@sha256:abc"),
            image_id: String::new(),
            log_path: String::new(),
            user: None,
            mounts: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        state.on(&mut container);
        self.snapshot.containers.insert(0, container);
    }

    /// Changes the newest record of a container.
    fn change_record(&mut self, name: &str, state: RecordState) {
        let newest = self.snapshot.containers.iter_mut().find(|one| one.name == name).expect("a record");
        state.on(newest);
    }

    fn failure(mut self, name: &str, reason: &str) -> Self {
        self.trouble_again(name, reason);
        self
    }

    fn trouble_again(&mut self, name: &str, reason: &str) {
        let failure = FailureReason { reason: reason.to_owned(), message: format!("{reason}: told") };
        self.failures.insert(name.to_owned(), failure);
    }

    fn result(mut self, id: &str, kind: ProbeKind, result: ProbeResult) -> Self {
        self.probe_results.set(id, kind, result);
        self
    }

    fn previously(mut self, status: Value) -> Self {
        self.previous = Some(serde_json::from_value(status).expect("a status"));
        self
    }
}

/// Where a container of the runtime stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RecordState {
    Created,
    Running,
    Exited(i32),
    /// Could not be started.
    Refused,
    Unknown,
}

impl RecordState {
    fn on(self, container: &mut Container) {
        container.state = match self {
            Self::Created => ContainerState::Created,
            Self::Running => ContainerState::Running,
            Self::Exited(_) | Self::Refused => ContainerState::Exited,
            Self::Unknown => ContainerState::Unknown,
        };
        container.started = matches!(self, Self::Running | Self::Exited(_)).then(|| time("00:00:03.9"));
        container.finished = matches!(self, Self::Exited(_) | Self::Refused).then(|| time("00:00:05.1"));
        let (code, reason) = match self {
            Self::Exited(0) => (0, "Completed"),
            Self::Exited(137) => (137, "OOMKilled"),
            Self::Exited(code) => (code, "Error"),
            Self::Refused => (128, "StartError"),
            _ => (0, ""),
        };
        container.exit_code = code;
        reason.clone_into(&mut container.reason);
    }
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> &'a PodCondition {
    status.conditions.iter().flatten().find(|one| one.type_ == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// A condition in brief: its status, its reason, its message.
fn brief<'a>(status: &'a PodStatus, kind: &str) -> (&'a str, &'a str, &'a str) {
    let one = condition(status, kind);
    (&one.status, one.reason.as_deref().unwrap_or_default(), one.message.as_deref().unwrap_or_default())
}

fn container_status<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|one| one.name == name).unwrap_or_else(|| panic!("no status of {name}"))
}

/// A state in brief: `running`, `waiting CrashLoopBackOff`, `ended 1 Error`.
fn short(state: Option<&k8s_openapi::api::core::v1::ContainerState>) -> String {
    let Some(state) = state else { return String::new() };
    let word = |text: &Option<String>| text.as_ref().map(|text| format!(" {text}")).unwrap_or_default();
    let states = [
        state.running.as_ref().map(|_| "running".to_owned()),
        state.waiting.as_ref().map(|waiting| format!("waiting{}", word(&waiting.reason))),
        state.terminated.as_ref().map(|ended| format!("ended {}{}", ended.exit_code, word(&ended.reason))),
    ];
    states.into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

fn state(status: &PodStatus, name: &str) -> String {
    short(container_status(status, name).state.as_ref())
}

fn last(status: &PodStatus, name: &str) -> String {
    short(container_status(status, name).last_state.as_ref())
}

fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}
