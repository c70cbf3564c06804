//! Replays one recorded moment with the pure modules.

use std::{net::IpAddr, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};
use vk_pod_engine::{
    Snapshot,
    containers::{find_container, pod_containers},
    plan::{self, CrashBackoffs, PlanInput},
    probe::{ProbeKind, ProbeResult, ProbeResults},
    snapshot::{Container, ContainerState, Sandbox, SandboxState},
    status::{self, FailureReason, FailureReasons, StatusInput},
};
use vk_testing::corpus::{Observation, Recording, compare};

/// Reasons for waiting that nobody has given: a container waits so by itself.
const BY_ITSELF: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// What cgroup v1 answers for a pod without a limit of memory. A kubelet tells it like any other.
const NO_LIMIT: &str = "9007199254740988Ki";
/// When something was written.
const LEFT_OUT: [&str; 3] = ["lastTransitionTime", "lastProbeTime", "startTime"];

/// A moment, with what was before it.
pub(super) struct Replay {
    name: String,
    passing: bool,
    /// Whether the runtime was further than the kubelet knew.
    late: bool,
    /// With the status that it had at the moment before.
    pod: Pod,
    expected: PodStatus,
    snapshot: Snapshot,
    probe_results: ProbeResults,
    failures: FailureReasons,
    now: Timestamp,
}

// === impl Replay ===

impl Replay {
    /// The moments of a recording at which the pod was there.
    pub(super) fn all(recording: &Recording) -> Vec<Self> {
        let mut before = PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() };
        let mut all = Vec::new();
        for moment in recording.moments.iter().filter(|moment| !moment.gone) {
            let (replay, expected) = Self::new(moment, before);
            before = expected;
            all.extend(replay);
        }
        all
    }

    /// The moment and what was said then; no moment if the runtime had forgotten already what was told of it.
    fn new(moment: &Observation, mut before: PodStatus) -> (Option<Self>, PodStatus) {
        let mut pod: Pod = serde_json::from_value(moment.pod.clone()).unwrap();
        let expected = pod.status.take().unwrap();
        let mut snapshot: Snapshot = serde_json::from_value(moment.snapshot.clone()).unwrap();
        snapshot.sort();
        let Some(late) = rewind(&mut snapshot, &expected, &before) else { return (None, expected) };
        if !snapshot.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready) {
            // It had them while its sandbox was there, at no moment of ours.
            before.pod_ip = before.pod_ip.or_else(|| expected.pod_ip.clone());
            before.pod_ips = before.pod_ips.or_else(|| expected.pod_ips.clone());
        }
        pod.status = Some(before);
        let (mut probe_results, mut failures) = (ProbeResults::default(), FailureReasons::new());
        for container in containers(&expected) {
            let waiting = container.state.as_ref().and_then(|state| state.waiting.clone());
            if let Some(waiting) =
                waiting.filter(|waiting| !BY_ITSELF.contains(&waiting.reason.as_deref().unwrap()))
            {
                let (reason, message) =
                    (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default());
                failures.insert(container.name.clone(), FailureReason { reason, message });
            }
            judge(&pod, container, &mut probe_results);
        }
        let (name, passing) = (moment.name.clone(), moment.passing);
        let (told, now) = (expected.clone(), moment.now.parse().unwrap());
        (Some(Self { name, passing, late, pod, expected, snapshot, probe_results, failures, now }), told)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the kubelet had nothing to do.
    pub(super) fn rests(&self) -> bool {
        // One that a container config was refused to is tried again and again.
        let is_held = self.failures.values().all(|failure| failure.reason == "CrashLoopBackOff");
        // The registry has another name in the recording, and with it every image another sum.
        let mut images = pod_containers(&self.pod).filter_map(|container| container.spec.image.clone());
        let is_renamed = images.any(|image| image.starts_with("registry.test/"));
        let begins = self.is_held_before_it_begins();
        is_held && !self.passing && !self.late && !self.is_due() && !is_renamed && !begins
    }

    /// Whether the time of a back-off is over.
    fn is_due(&self) -> bool {
        containers(&self.expected).any(|told| {
            let waiting = told.state.as_ref().and_then(|state| state.waiting.as_ref());
            let words = waiting.and_then(|waiting| waiting.message.as_deref()?.strip_prefix("back-off "));
            let Some(length) = words.and_then(|words| words.split(' ').next()) else { return false };
            let length: SignedDuration = length.parse().unwrap();
            let finished = self.snapshot.newest(&told.name).and_then(|record| record.finished);
            finished.is_some_and(|finished| finished + length <= self.now)
        })
    }

    /// Whether it waits for volumes or a sandbox.
    fn is_held_before_it_begins(&self) -> bool {
        self.expected.phase.as_deref() == Some("Pending")
            && (self.snapshot.containers.is_empty() || self.snapshot.sandboxes.is_empty())
    }

    /// In what our status is not the kubelet's.
    pub(super) fn differences(&self) -> Vec<String> {
        let node_ips: Vec<IpAddr> =
            self.expected.host_ips.iter().flatten().map(|address| address.ip.parse().unwrap()).collect();
        let over = matches!(self.expected.phase.as_deref(), Some("Succeeded" | "Failed"));
        let failed = self.expected.reason.clone().filter(|_| over).map(|reason| FailureReason {
            reason,
            message: self.expected.message.clone().unwrap_or_default(),
        });
        let input = StatusInput {
            pod: &self.pod,
            snapshot: &self.snapshot,
            probe_results: &self.probe_results,
            failures: &self.failures,
            previous: None,
            node_ips: &node_ips,
            runtime: "containerd",
            recursive_read_only: false,
            failed: failed.as_ref(),
            terminated: over,
            since: None,
            now: self.now,
        };
        let mut ours = status::compute_status(&input);
        if over {
            ours = status::terminated_status(&self.pod, &ours);
        }
        let ours = status::reported_status(&ours, self.pod.status.as_ref(), self.snapshot.is_live());
        compare("status", &comparable(&self.expected), &comparable(&ours))
    }

    /// What is to be done, by our judgement.
    pub(super) fn demands(&self) -> Vec<String> {
        let mut pod = self.pod.clone();
        pod.status = Some(self.expected.clone());
        let mut backoffs = CrashBackoffs::new(Duration::from_mins(5));
        backoffs.adopt(&pod, &self.snapshot, self.now);
        let plan = plan::compute_plan(&PlanInput {
            pod: &pod,
            snapshot: &self.snapshot,
            probe_results: &self.probe_results,
            backoffs: &backoffs,
            now: self.now,
        });
        let mut demands = Vec::new();
        if plan.stop_all && self.snapshot.is_live() {
            demands.push("stop all".to_owned());
        }
        demands.extend(plan.stop.iter().map(|stop| format!("stop {}: {}", stop.name, stop.message)));
        demands.extend(plan.start.iter().map(|start| format!("start {}", start.name)));
        if let plan::SandboxPlan::Create { attempt, .. } = &plan.sandbox {
            demands.push(format!("create sandbox {attempt}"));
        }
        demands
    }
}

/// Takes back what happened in the runtime after the kubelet had looked: on a busy machine its status is seconds old. Tells whether there
/// was something; `None` when the runtime has already forgotten what the kubelet tells of.
fn rewind(snapshot: &mut Snapshot, expected: &PodStatus, before: &PodStatus) -> Option<bool> {
    let id_of = |id: &Option<String>| Some(id.as_deref()?.split_once("://")?.1.to_owned());
    let is_ready = |sandbox: &Sandbox| sandbox.state == SandboxState::Ready;
    let mut conditions = expected.conditions.iter().flatten();
    let had_sandbox = conditions.any(|one| one.type_ == "PodReadyToStartContainers" && one.status == "True");
    if had_sandbox && !snapshot.sandboxes.iter().any(is_ready) {
        return None;
    }
    let length = snapshot.containers.len();
    let mut is_late = false;
    for told in containers(expected) {
        let is_of = |record: &Container| record.name == told.name;
        let Some(id) = id_of(&told.container_id) else {
            snapshot.containers.retain(|record| !is_of(record));
            continue;
        };
        let last = told.last_state.as_ref().and_then(|state| id_of(&state.terminated.as_ref()?.container_id));
        let is_known =
            |id: &String| snapshot.container(id).is_some() || json!(before).to_string().contains(id);
        if last.is_some_and(|last| !is_known(&last)) || !is_known(&id) {
            return None;
        }
        let mut is_newer = snapshot.container(&id).is_some();
        snapshot.containers.retain(|record| {
            is_newer &= !is_of(record) || record.id != id;
            !is_of(record) || !is_newer
        });
        let ran = told.state.as_ref().is_some_and(|state| state.running.is_some());
        let ended = |record: &&mut Container| record.id == id && record.state == ContainerState::Exited;
        for record in snapshot.containers.iter_mut().filter(|record| ran && ended(record)) {
            record.state = ContainerState::Running;
            record.finished = None;
            is_late = true;
        }
    }
    Some(is_late || snapshot.containers.len() < length)
}

/// What probes must have found out, as the status shows it.
fn judge(pod: &Pod, container: &ContainerStatus, probe_results: &mut ProbeResults) {
    let Some((_, id)) = container.container_id.as_deref().and_then(|id| id.split_once("://")) else { return };
    let found = find_container(pod, &container.name).unwrap();
    let well = |yes: bool, no: ProbeResult| if yes { ProbeResult::Success } else { no };
    let started = container.started.unwrap_or_default();
    if found.spec.startup_probe.is_some() {
        probe_results.set(id, ProbeKind::Startup, well(started, ProbeResult::Unknown));
    }
    if found.spec.readiness_probe.is_some() {
        probe_results.set(id, ProbeKind::Readiness, well(container.ready, ProbeResult::Failure));
    }
    if found.spec.liveness_probe.is_some() {
        probe_results.set(id, ProbeKind::Liveness, ProbeResult::Success);
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}

fn comparable(status: &PodStatus) -> Value {
    let mut value = json!(status);
    // Read from control groups, which go at some time when the pod is over.
    let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if is_over || value.pointer("/resources/limits/memory") == Some(&json!(NO_LIMIT)) {
        value["resources"]["limits"] = Value::Null;
    }
    strip(&mut value);
    if let Some(conditions) = value.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.sort_by_key(|condition| condition["type"].to_string());
    }
    value
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // The API server writes out an empty last state.
            let says =
                |name: &str, value: &Value| !value.is_null() && (name != "lastState" || *value != json!({}));
            fields.retain(|name, value| says(name, value) && !LEFT_OUT.contains(&name.as_str()));
            fields.values_mut().for_each(strip);
        }
        Value::Array(elements) => elements.iter_mut().for_each(strip),
        _ => {}
    }
}
