//! One recorded moment, given to the pure parts.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};
use vk_pod_engine::{
    Snapshot,
    decide::{self, Backoffs},
    parts::part,
    probe::{Kind, Verdict, Verdicts},
    status::{self, Trouble, Troubles},
};
use vk_testing::corpus::{Moment, Recording, compare};

/// Reasons for waiting that nobody has given: a container waits so by itself.
const BY_ITSELF: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// When something was written, and what a kubelet reads from control groups.
const LEFT_OUT: [&str; 4] = ["lastTransitionTime", "lastProbeTime", "startTime", "resources"];

/// A moment, with what was before it.
pub(super) struct Replay {
    name: String,
    passing: bool,
    /// With the status that it had at the moment before.
    pod: Pod,
    expected: PodStatus,
    snapshot: Snapshot,
    verdicts: Verdicts,
    troubles: Troubles,
    now: Timestamp,
}

// === impl Replay ===

impl Replay {
    /// The moments of a recording at which the pod was there.
    pub(super) fn all(recording: &Recording) -> Vec<Self> {
        let mut before = PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() };
        let mut all = Vec::new();
        for moment in recording.moments.iter().filter(|moment| !moment.gone) {
            let replay = Self::new(moment, before);
            before = replay.expected.clone();
            all.push(replay);
        }
        all
    }

    fn new(moment: &Moment, mut before: PodStatus) -> Self {
        let mut pod: Pod = serde_json::from_value(moment.pod.clone()).unwrap();
        let expected = pod.status.take().unwrap();
        if snapshot_ended(moment) {
            // Its addresses were seen when it had some.
            before.pod_ip.clone_from(&expected.pod_ip);
            before.pod_ips.clone_from(&expected.pod_ips);
        }
        pod.status = Some(before);
        let mut snapshot: Snapshot = serde_json::from_value(moment.snapshot.clone()).unwrap();
        snapshot.sort();
        let (mut verdicts, mut troubles) = (Verdicts::default(), Troubles::new());
        for container in containers(&expected) {
            let waiting = container.state.as_ref().and_then(|state| state.waiting.clone());
            if let Some(waiting) =
                waiting.filter(|waiting| !BY_ITSELF.contains(&waiting.reason.as_deref().unwrap()))
            {
                let (reason, message) =
                    (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default());
                troubles.insert(container.name.clone(), Trouble { reason, message });
            }
            judge(&pod, container, &mut verdicts);
        }
        let (name, passing) = (moment.name.clone(), moment.passing);
        Self { name, passing, pod, expected, snapshot, verdicts, troubles, now: moment.now.parse().unwrap() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the kubelet had nothing to do.
    pub(super) fn rests(&self) -> bool {
        // One that a container config was refused to is tried again and again.
        !self.passing
            && self.troubles.values().all(|trouble| trouble.reason == "CrashLoopBackOff")
            && !self.is_held_before_it_begins()
    }

    /// Whether a container was to be started at this very moment: that is when the kubelet comes to say that it waits.
    fn has_waited(&self, name: &str) -> bool {
        let ended = self.snapshot.newest(name).and_then(|container| container.finished);
        let pause = self.troubles.get(name).and_then(pause);
        ended.zip(pause).is_some_and(|(ended, pause)| ended + pause <= self.now)
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
        let failed = self
            .expected
            .reason
            .clone()
            .filter(|_| over)
            .map(|reason| Trouble { reason, message: self.expected.message.clone().unwrap_or_default() });
        let situation = status::Situation {
            pod: &self.pod,
            snapshot: &self.snapshot,
            verdicts: &self.verdicts,
            troubles: &self.troubles,
            previous: None,
            node_ips: &node_ips,
            runtime: "containerd",
            recursive_read_only: false,
            failed: failed.as_ref(),
            over,
            since: None,
            now: self.now,
        };
        let mut ours = status::status(&situation);
        if over {
            ours = status::settled(&self.pod, &ours);
        }
        let ours = status::told(&ours, self.pod.status.as_ref(), self.snapshot.is_live());
        compare("status", &comparable(&self.expected), &comparable(&ours))
    }

    /// What is to be done, by our judgement.
    pub(super) fn demands(&self) -> Vec<String> {
        let mut pod = self.pod.clone();
        pod.status = Some(self.expected.clone());
        let mut backoffs = Backoffs::new(Duration::from_mins(5));
        backoffs.adopt(&pod, &self.snapshot, self.now);
        let plan = decide::plan(&decide::Situation {
            pod: &pod,
            snapshot: &self.snapshot,
            verdicts: &self.verdicts,
            backoffs: &backoffs,
            now: self.now,
        });
        let mut demands = Vec::new();
        if plan.stop_all && self.snapshot.is_live() {
            demands.push("stop all".to_owned());
        }
        demands.extend(plan.stop.iter().map(|stop| format!("stop {}: {}", stop.name, stop.message)));
        let start = plan.start.iter().filter(|start| !self.has_waited(&start.name));
        demands.extend(start.map(|start| format!("start {}", start.name)));
        if let decide::SandboxPlan::Create { attempt, .. } = &plan.sandbox {
            demands.push(format!("create sandbox {attempt}"));
        }
        demands
    }
}

/// How long a container waits after its end, as the status says it: `back-off 20s restarting ...`.
fn pause(trouble: &Trouble) -> Option<jiff::SignedDuration> {
    trouble.message.strip_prefix("back-off ")?.split(' ').next()?.parse().ok()
}

/// What probes must have found out, as the status shows it.
fn judge(pod: &Pod, container: &ContainerStatus, verdicts: &mut Verdicts) {
    let Some((_, id)) = container.container_id.as_deref().and_then(|id| id.split_once("://")) else { return };
    let part = part(pod, &container.name).unwrap();
    let well = |yes: bool, no: Verdict| if yes { Verdict::Success } else { no };
    let started = container.started.unwrap_or_default();
    if part.container.startup_probe.is_some() {
        verdicts.set(id, Kind::Startup, well(started, Verdict::Unknown));
    }
    if part.container.readiness_probe.is_some() {
        verdicts.set(id, Kind::Readiness, well(container.ready, Verdict::Failure));
    }
    if part.container.liveness_probe.is_some() {
        verdicts.set(id, Kind::Liveness, Verdict::Success);
    }
}

/// Whether no sandbox is left that could tell an address.
fn snapshot_ended(moment: &Moment) -> bool {
    !moment.snapshot["sandboxes"].as_array().into_iter().flatten().any(|sandbox| sandbox["state"] == "Ready")
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}

fn comparable(status: &PodStatus) -> Value {
    let mut value = json!(status);
    strip(&mut value);
    if let Some(conditions) = value.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.sort_by_key(|condition| condition["type"].to_string());
    }
    value
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(strip);
            // The API server shows what is not there as nothing, or as an empty object.
            let empty = |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            fields.retain(|name, value| !empty(value) && !LEFT_OUT.contains(&name.as_str()));
        }
        Value::Array(elements) => elements.iter_mut().for_each(strip),
        _ => {}
    }
}
