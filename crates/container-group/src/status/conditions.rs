//! The pod conditions that a kubelet writes, with its reasons and messages.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, PodStatus};
use vk_provider::requests::is_sidecar;

use super::{StatusInput, condition, containers::has_never_run, is_final, whole_seconds};

const READY_TO_START: &str = "PodReadyToStartContainers";
const INITIALIZED: &str = "Initialized";
const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
const SCHEDULED: &str = "PodScheduled";
const RESIZING: &str = "PodResizeInProgress";
const DISRUPTED: &str = "DisruptionTarget";

/// The reason of a pod whose group the cloud took back.
pub(crate) const PREEMPTED: &str = "PreemptedByCloud";

/// Sets the conditions, in the kubelet's order. A transition time changes only with the status of its condition.
pub(super) fn compose(input: &StatusInput<'_>, old: &PodStatus, status: &mut PodStatus) {
    let begun = status.container_statuses.iter().flatten().any(|one| !has_never_run(one));
    let has_network = !is_final(status) && (status.pod_ip.is_some() || begun);
    let containers = containers_ready(status);
    let mut conditions = vec![
        condition(READY_TO_START, has_network),
        initialized(input, old, status, begun),
        ready(input.pod, &containers),
        containers,
        condition(SCHEDULED, true),
    ];
    if input.observed.is_some_and(|observed| observed.preempted) {
        let message = input.observed.and_then(|observed| observed.message.clone());
        conditions.push(PodCondition {
            reason: Some(PREEMPTED.to_owned()),
            message: message.or_else(|| Some("the cloud took the container group back".to_owned())),
            ..condition(DISRUPTED, true)
        });
    }
    if input.is_resizing && !is_final(status) {
        conditions.push(condition(RESIZING, true));
    }
    for one in &mut conditions {
        one.observed_generation = input.pod.and_then(|pod| pod.metadata.generation);
        let before = old.conditions.iter().flatten().find(|before| before.type_ == one.type_);
        let same = before.filter(|before| before.status == one.status);
        let kept = same.and_then(|before| before.last_transition_time.clone());
        one.last_transition_time = kept.or_else(|| Some(whole_seconds(input.now)));
    }
    status.conditions = Some(conditions);
}

fn initialized(input: &StatusInput<'_>, old: &PodStatus, status: &PodStatus, begun: bool) -> PodCondition {
    if status.phase.as_deref() == Some("Succeeded") {
        return PodCondition { reason: Some("PodCompleted".to_owned()), ..condition(INITIALIZED, true) };
    }
    let was = old.conditions.iter().flatten().any(|one| one.type_ == INITIALIZED && one.status == "True");
    let spec = input.pod.and_then(|pod| pod.spec.as_ref());
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let done = |container: &&Container| {
        let status = status.init_container_statuses.iter().flatten().find(|one| one.name == container.name);
        status.is_some_and(|one| if is_sidecar(container) { one.started == Some(true) } else { one.ready })
    };
    let missing: Vec<&str> =
        inits.iter().filter(|container| !done(container)).map(|container| container.name.as_str()).collect();
    if was || begun || missing.is_empty() {
        return condition(INITIALIZED, true);
    }
    PodCondition {
        reason: Some("ContainersNotInitialized".to_owned()),
        message: Some(format!("containers with incomplete status: [{}]", missing.join(" "))),
        ..condition(INITIALIZED, false)
    }
}

fn containers_ready(status: &PodStatus) -> PodCondition {
    let finished = match status.phase.as_deref() {
        Some("Succeeded") => Some("PodCompleted"),
        Some("Failed") => Some("PodFailed"),
        _ => None,
    };
    if let Some(reason) = finished {
        return PodCondition { reason: Some(reason.to_owned()), ..condition(CONTAINERS_READY, false) };
    }
    let regular: &[ContainerStatus] = status.container_statuses.as_deref().unwrap_or_default();
    let unready: Vec<&str> = regular.iter().filter(|one| !one.ready).map(|one| one.name.as_str()).collect();
    if unready.is_empty() && !regular.is_empty() {
        return condition(CONTAINERS_READY, true);
    }
    PodCondition {
        reason: Some("ContainersNotReady".to_owned()),
        message: Some(format!("containers with unready status: [{}]", unready.join(" "))),
        ..condition(CONTAINERS_READY, false)
    }
}

/// Ready: all containers are ready, and every readiness gate, a condition that another component writes, is met.
fn ready(pod: Option<&Pod>, containers: &PodCondition) -> PodCondition {
    if containers.status != "True" {
        return PodCondition { type_: READY.to_owned(), ..containers.clone() };
    }
    let gates = pod.and_then(|pod| pod.spec.as_ref()?.readiness_gates.as_deref()).unwrap_or_default();
    let stored = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_deref()).unwrap_or_default();
    let is_met = |kind: &str| stored.iter().any(|one| one.type_ == kind && one.status == "True");
    let closed: Vec<&str> =
        gates.iter().map(|gate| gate.condition_type.as_str()).filter(|kind| !is_met(kind)).collect();
    if closed.is_empty() {
        return condition(READY, true);
    }
    PodCondition {
        reason: Some("ReadinessGatesNotReady".to_owned()),
        message: Some(format!("readiness gates that are not met: [{}]", closed.join(" "))),
        ..condition(READY, false)
    }
}
