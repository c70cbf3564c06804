//! Pod conditions: those about the containers are reported, those that only concern the lower cluster are not.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use vk_provider::pod::STILL_RUNNING;

use super::truncate::{MAX_MESSAGE, MAX_REASON, truncate, truncate_optional};
use crate::names;

const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
const POD_SCHEDULED: &str = "PodScheduled";

/// Conditions that a kubelet writes, and the reason for a disruption. PodScheduled is missing because the upper scheduler owns it, and
/// Ready because the core computes it.
const REPORTED: [&str; 7] = [
    "PodReadyToStartContainers",
    "Initialized",
    CONTAINERS_READY,
    "AllContainersRestarting",
    "PodResizePending",
    "PodResizeInProgress",
    "DisruptionTarget",
];

/// The conditions to report.
pub(super) fn reported(lower: &Pod, there: &PodStatus) -> Option<Vec<PodCondition>> {
    let below = |kind: &str| find(lower.status.as_ref(), kind);
    let mut all: Vec<PodCondition> = REPORTED
        .iter()
        .filter_map(|kind| below(kind))
        .filter(|one| is_status(&one.status))
        .map(copy)
        .collect();
    if let Some(unready) = not_ready(below(READY))
        && let Some(containers) = all.iter_mut().find(|one| one.type_ == CONTAINERS_READY)
        && containers.status == "True"
    {
        *containers = unready;
    }
    // Reported while it is news: not for a pod that was scheduled at once, but for one that had to wait.
    all.extend(
        scheduling(lower).filter(|one| one.status != "True" || find(Some(there), names::SCHEDULED).is_some()),
    );
    (!all.is_empty()).then_some(all)
}

/// The decision of the lower scheduler, as the condition [`names::SCHEDULED`] of the upper pod; `None` if there is none yet.
pub fn scheduling(lower: &Pod) -> Option<PodCondition> {
    let bound =
        lower.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    let said = find(lower.status.as_ref(), POD_SCHEDULED).filter(|one| is_status(&one.status)).map(copy);
    let condition = match said {
        // The pod is bound, whatever the condition says.
        Some(said) if bound && said.status != "True" => {
            PodCondition { last_transition_time: None, ..condition("True") }
        }
        Some(said) => said,
        None if bound => condition("True"),
        None => return None,
    };
    Some(PodCondition { type_: names::SCHEDULED.to_owned(), ..condition })
}

/// Reports that injected containers are still running when all containers of the upper pod have ended, so that the pod is not removed or
/// counted as ended before them.
pub(super) fn still_running(below: &PodStatus, upper: &Pod, shown: &PodStatus) -> Option<PodCondition> {
    let spec = upper.spec.as_ref()?;
    let known = |name: &str| {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers).any(|one| one.name == name)
            || spec.ephemeral_containers.iter().flatten().any(|one| one.name == name)
    };
    let ended = |one: &ContainerStatus| one.state.as_ref().is_some_and(|state| state.terminated.is_some());
    if !all(shown).all(ended) {
        return None;
    }
    let runs = |one: &&ContainerStatus| one.state.as_ref().is_some_and(|state| state.running.is_some());
    let hidden: Vec<&str> =
        all(below).filter(runs).map(|one| &*one.name).filter(|name| !known(name)).collect();
    (!hidden.is_empty()).then(|| PodCondition {
        type_: STILL_RUNNING.to_owned(),
        reason: Some("AddedBelow".to_owned()),
        message: Some(truncate(
            &format!("containers added by the lower cluster are still running: [{}]", hidden.join(" ")),
            MAX_MESSAGE,
        )),
        ..condition("True")
    })
}

fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
        .chain(status.ephemeral_container_statuses.iter().flatten())
}

/// The replacement for ContainersReady when the pod is not Ready although its containers are, because its lower node is unreachable: the
/// kubelet cannot update the containers, so the lower cluster only updates the pod. Injected readiness gates only concern the lower
/// cluster.
fn not_ready(ready: Option<&PodCondition>) -> Option<PodCondition> {
    let ready = ready.filter(|ready| matches!(ready.status.as_str(), "False" | "Unknown"))?;
    if ready.reason.as_deref() == Some("ReadinessGatesNotReady") {
        return None;
    }
    let said = copy(ready);
    let or = |text: Option<String>, other: &str| text.unwrap_or_else(|| other.to_owned());
    Some(PodCondition {
        type_: CONTAINERS_READY.to_owned(),
        status: "False".to_owned(),
        reason: Some(or(said.reason, "LowerPodNotReady")),
        message: Some(or(said.message, "the lower cluster reports that the pod is not ready")),
        ..said
    })
}

pub(super) fn find<'a>(status: Option<&'a PodStatus>, kind: &str) -> Option<&'a PodCondition> {
    status?.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn is_status(status: &str) -> bool {
    matches!(status, "True" | "False" | "Unknown")
}

fn condition(status: &str) -> PodCondition {
    PodCondition { status: status.to_owned(), ..PodCondition::default() }
}

/// A condition without the observed generation, which is that of the lower pod.
pub(super) fn copy(from: &PodCondition) -> PodCondition {
    PodCondition {
        type_: from.type_.clone(),
        status: from.status.clone(),
        reason: truncate_optional(from.reason.as_ref(), MAX_REASON),
        message: truncate_optional(from.message.as_ref(), MAX_MESSAGE),
        last_transition_time: from.last_transition_time.clone(),
        ..PodCondition::default()
    }
}
