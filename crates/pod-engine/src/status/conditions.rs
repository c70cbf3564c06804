//! The pod conditions that a kubelet writes, with its reasons and messages.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use vk_provider::restart_policy::may_restart_all;

use super::{StatusInput, find, pod_restart};
use crate::{
    containers::{PodContainer, Role, pod_containers},
    plan::needs_sandbox,
};

/// The sandbox and its network exist.
pub(super) const READY_TO_START: &str = "PodReadyToStartContainers";
/// All init containers have completed and all sidecars have started.
pub(super) const INITIALIZED: &str = "Initialized";
/// All containers are ready and all readiness gates are met.
pub(super) const READY: &str = "Ready";
/// All containers are ready.
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
/// The pod has a node.
pub(super) const SCHEDULED: &str = "PodScheduled";

/// All containers are being restarted because a restart rule of one of them matched.
pub(super) const RESTARTING: &str = "AllContainersRestarting";

/// Sets the conditions, in the kubelet's order.
pub(super) fn compose(input: &StatusInput<'_>, old: &PodStatus, status: &mut PodStatus) {
    let pod = input.pod;
    let statuses: Vec<ContainerStatus> = [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .cloned()
        .collect();
    let phase = status.phase.as_deref().unwrap_or_default();
    let containers = containers_ready(pod, &statuses, phase);
    let conditions = [
        condition(READY_TO_START, !needs_sandbox(pod, input.snapshot)),
        initialized(pod, old, &statuses, phase),
        ready(pod, &containers),
        containers,
        condition(SCHEDULED, true),
    ];
    let generation = pod.metadata.generation;
    let seen = |condition| PodCondition { observed_generation: generation, ..condition };
    let mut conditions: Vec<PodCondition> = conditions.into_iter().map(seen).collect();
    if may_restart_all(pod) {
        conditions.push(restarting(input, old, phase));
    }
    status.conditions = Some(conditions);
}

fn initialized(pod: &Pod, old: &PodStatus, statuses: &[ContainerStatus], phase: &str) -> PodCondition {
    if phase == "Succeeded" {
        return PodCondition { reason: Some("PodCompleted".to_owned()), ..condition(INITIALIZED, true) };
    }
    let has_run = |name: &str| {
        let state = find(statuses, name).and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    // Once a regular container has run, restarting sidecars do not matter.
    if pod_containers(pod).any(|container| container.role == Role::Regular && has_run(&container.spec.name)) {
        return condition(INITIALIZED, true);
    }
    // An initialized pod stays initialized, also in a new sandbox.
    if old.conditions.iter().flatten().any(|one| one.type_ == INITIALIZED && one.status == "True") {
        return condition(INITIALIZED, true);
    }
    let incomplete = names(pod, |role, name| {
        let done = |status: &ContainerStatus| match role {
            Role::Sidecar => status.started == Some(true),
            Role::Init => status.ready,
            Role::Regular | Role::Ephemeral => true,
        };
        !find(statuses, name).is_some_and(done) && matches!(role, Role::Init | Role::Sidecar)
    });
    let Some(incomplete) = incomplete else { return condition(INITIALIZED, true) };
    PodCondition {
        reason: Some("ContainersNotInitialized".to_owned()),
        message: Some(format!("containers with incomplete status: [{incomplete}]")),
        ..condition(INITIALIZED, false)
    }
}

fn restarting(input: &StatusInput<'_>, old: &PodStatus, phase: &str) -> PodCondition {
    let (pod, snapshot) = (input.pod, input.snapshot);
    if let Some(finished) = finished_condition(RESTARTING, phase) {
        return finished;
    }
    let is_there = |container: PodContainer<'_>| snapshot.newest(&container.spec.name).is_some();
    let is_left = pod_containers(pod).filter(|container| container.role != Role::Ephemeral).any(is_there);
    if !is_left || !pod_restart::is_restarting(pod, snapshot, old) {
        return condition(RESTARTING, false);
    }
    PodCondition {
        reason: Some("RestartAllContainersStarted".to_owned()),
        message: Some("container exited with restart policy rule".to_owned()),
        ..condition(RESTARTING, true)
    }
}

fn containers_ready(pod: &Pod, statuses: &[ContainerStatus], phase: &str) -> PodCondition {
    if let Some(finished) = finished_condition(CONTAINERS_READY, phase) {
        return finished;
    }
    let unready = names(pod, |role, name| {
        let ready = find(statuses, name).is_some_and(|status| status.ready);
        matches!(role, Role::Sidecar | Role::Regular) && !ready
    });
    let Some(unready) = unready else { return condition(CONTAINERS_READY, true) };
    PodCondition {
        reason: Some("ContainersNotReady".to_owned()),
        message: Some(format!("containers with unready status: [{unready}]")),
        ..condition(CONTAINERS_READY, false)
    }
}

/// Ready: all containers are ready, and every readiness gate (a condition that another component writes) is met.
fn ready(pod: &Pod, containers: &PodCondition) -> PodCondition {
    if containers.status != "True" {
        return PodCondition { type_: READY.to_owned(), ..containers.clone() };
    }
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let stored = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let closed = gates.iter().filter_map(|gate| {
        let kind = &gate.condition_type;
        match stored
            .iter()
            .find(|condition| condition.type_ == *kind)
            .map(|condition| condition.status.as_str())
        {
            Some("True") => None,
            Some(other) => {
                Some(format!("the status of pod readiness gate {kind:?} is not \"True\", but {other}"))
            }
            None => Some(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
        }
    });
    let closed: Vec<String> = closed.collect();
    if closed.is_empty() {
        return condition(READY, true);
    }
    PodCondition {
        reason: Some("ReadinessGatesNotReady".to_owned()),
        message: Some(closed.join(", ")),
        ..condition(READY, false)
    }
}

/// The readiness condition of a finished pod.
pub(super) fn finished_condition(kind: &str, phase: &str) -> Option<PodCondition> {
    let reason = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => return None,
    };
    Some(PodCondition { reason: Some(reason.to_owned()), ..condition(kind, false) })
}

/// Names of the matching containers, sidecars before regular ones; `None` if there are none.
fn names(pod: &Pod, mut holds: impl FnMut(Role, &str) -> bool) -> Option<String> {
    let held = pod_containers(pod).filter(|container| holds(container.role, &container.spec.name));
    let names: Vec<String> = held.map(|container| container.spec.name.clone()).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

fn condition(kind: &str, holds: bool) -> PodCondition {
    let status = if holds { "True" } else { "False" };
    PodCondition { type_: kind.to_owned(), status: status.to_owned(), ..PodCondition::default() }
}
