//! The conditions that a kubelet writes, with its reasons and messages.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};

use super::{Situation, find, restart};
use crate::{
    parts::{Part, Role, parts},
    snapshot::{SandboxState, Snapshot},
};

/// The sandbox and its network are there.
pub(super) const READY_TO_START: &str = "PodReadyToStartContainers";
/// All init containers have ended well, all sidecars have started.
pub(super) const INITIALIZED: &str = "Initialized";
/// The pod serves: its containers and its readiness gates are ready.
pub(super) const READY: &str = "Ready";
/// All containers are ready.
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
/// The pod has a node.
pub(super) const SCHEDULED: &str = "PodScheduled";

/// All containers are being restarted, because one of them ended in a way that asks for it.
pub(super) const RESTARTING: &str = "AllContainersRestarting";

/// Puts in the conditions, in the kubelet's order.
pub(super) fn compose(situation: &Situation<'_>, old: &PodStatus, status: &mut PodStatus) {
    let pod = situation.pod;
    let statuses: Vec<ContainerStatus> = [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .cloned()
        .collect();
    let phase = status.phase.as_deref().unwrap_or_default();
    let containers = containers_ready(pod, &statuses, phase);
    let conditions = [
        condition(READY_TO_START, !needs_sandbox(pod, situation.snapshot)),
        initialized(pod, old, &statuses, phase),
        ready(pod, &containers),
        containers,
        condition(SCHEDULED, true),
    ];
    let generation = pod.metadata.generation;
    let seen = |condition| PodCondition { observed_generation: generation, ..condition };
    let mut conditions: Vec<PodCondition> = conditions.into_iter().map(seen).collect();
    if restart::may_restart(pod) {
        conditions.push(restarting(situation, old, phase));
    }
    status.conditions = Some(conditions);
}

/// Whether the pod has no sandbox in which its containers can run.
fn needs_sandbox(pod: &Pod, snapshot: &Snapshot) -> bool {
    let on_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    let ready = snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    snapshot.sandboxes.first().is_none_or(|newest| {
        ready > 1
            || newest.state != SandboxState::Ready
            || newest.host_network != on_host
            || (!on_host && newest.ips.is_empty())
    })
}

fn initialized(pod: &Pod, old: &PodStatus, statuses: &[ContainerStatus], phase: &str) -> PodCondition {
    if phase == "Succeeded" {
        return PodCondition { reason: Some("PodCompleted".to_owned()), ..condition(INITIALIZED, true) };
    }
    let has_run = |name: &str| {
        let state = find(statuses, name).and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    // Once a regular container has run, a sidecar that is restarted does not matter any more.
    if parts(pod).any(|part| part.role == Role::Regular && has_run(&part.container.name)) {
        return condition(INITIALIZED, true);
    }
    // And what was initialised once stays so, also in a new sandbox.
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

fn restarting(situation: &Situation<'_>, old: &PodStatus, phase: &str) -> PodCondition {
    let (pod, snapshot) = (situation.pod, situation.snapshot);
    if let Some(over) = over(RESTARTING, phase) {
        return over;
    }
    let is_there = |part: Part<'_>| snapshot.newest(&part.container.name).is_some();
    let is_left = parts(pod).filter(|part| part.role != Role::Ephemeral).any(is_there);
    if !is_left || !restart::is_restarting(pod, snapshot, old) {
        return condition(RESTARTING, false);
    }
    PodCondition {
        reason: Some("RestartAllContainersStarted".to_owned()),
        message: Some("container exited with restart policy rule".to_owned()),
        ..condition(RESTARTING, true)
    }
}

fn containers_ready(pod: &Pod, statuses: &[ContainerStatus], phase: &str) -> PodCondition {
    if let Some(over) = over(CONTAINERS_READY, phase) {
        return over;
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

/// Ready: the containers, and every readiness gate, which are conditions of others.
fn ready(pod: &Pod, containers: &PodCondition) -> PodCondition {
    if containers.status != "True" {
        return PodCondition { type_: READY.to_owned(), ..containers.clone() };
    }
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let there = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let closed = gates.iter().filter_map(|gate| {
        let kind = &gate.condition_type;
        match there
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

/// What a readiness condition says of a pod that has ended.
pub(super) fn over(kind: &str, phase: &str) -> Option<PodCondition> {
    let reason = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => return None,
    };
    Some(PodCondition { reason: Some(reason.to_owned()), ..condition(kind, false) })
}

/// The names of the containers for which it holds, sidecars before regular ones; `None` where there is none.
fn names(pod: &Pod, mut holds: impl FnMut(Role, &str) -> bool) -> Option<String> {
    let held = parts(pod).filter(|part| holds(part.role, &part.container.name));
    let names: Vec<String> = held.map(|part| part.container.name.clone()).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

fn condition(kind: &str, holds: bool) -> PodCondition {
    let status = if holds { "True" } else { "False" };
    PodCondition { type_: kind.to_owned(), status: status.to_owned(), ..PodCondition::default() }
}
