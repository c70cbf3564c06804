//! The conditions of a pod: the standard ones, and the provider's own. Those of other controllers are never sent, and so survive.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use vk_provider::placement::PLACED_CONDITION;

use super::{StatusContext, is_complete, is_terminal, whole_seconds};

/// All init containers have ended well.
pub const INITIALIZED: &str = "Initialized";
/// All containers are ready.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// The pod is ready: its containers and its readiness gates are.
pub const READY: &str = "Ready";
/// The sandbox and its network exist.
pub const READY_TO_START: &str = "PodReadyToStartContainers";

/// The pod has a node. Written where a provider reports it, as a kubelet does, and never the reason for a write: it does not change.
const SCHEDULED: &str = "PodScheduled";

/// All containers are being restarted together. Written where a provider reports it.
const RESTARTING: &str = "AllContainersRestarting";

/// A resize is wanted and is impossible, now or ever.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// A resize is in progress.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
/// Whether the provider has accepted the last change of the pod. Present only when it has not.
pub const UPDATED: &str = "virtual-kubelet.io/Updated";

/// The pod is about to be terminated. The eviction API and controllers set it, too, and Jobs rely on it: once set, it stays.
pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Conditions of this domain and its subdomains are a provider's own.
const DOMAIN: &str = "virtual-kubelet.io";

/// Standard conditions that we write. A provider may also report its own, and no others: the rest belongs to other controllers.
const OURS: [&str; 8] = [
    INITIALIZED,
    CONTAINERS_READY,
    READY,
    READY_TO_START,
    RESTARTING,
    RESIZE_PENDING,
    RESIZE_IN_PROGRESS,
    UPDATED,
];

/// Those that are present only while they are true.
const PASSING: [&str; 3] = [RESIZE_PENDING, RESIZE_IN_PROGRESS, UPDATED];

/// Our conditions that are stored and are to be removed.
pub(super) fn outdated(status: &PodStatus, there: Option<&PodStatus>) -> Vec<String> {
    let passes = |kind: &str| PASSING.contains(&kind) || is_own(kind);
    let there = there.and_then(|there| there.conditions.as_deref()).unwrap_or_default();
    let kinds = there.iter().map(|condition| condition.type_.as_str()).filter(|kind| passes(kind));
    kinds.filter(|kind| find(status, kind).is_none()).map(str::to_owned).collect()
}

/// Removes conditions that others may set, too, and that are stored as they are: they are not sent.
pub(super) fn remove_unchanged(status: &mut PodStatus, there: Option<&PodStatus>) {
    if let (Some(conditions), Some(there)) = (&mut status.conditions, there) {
        let known = find(there, DISRUPTION_TARGET);
        conditions.retain(|one| one.type_ != DISRUPTION_TARGET || known != Some(one));
    }
}

/// Whether a condition of this type is ours to write.
pub(super) fn is_ours(kind: &str) -> bool {
    OURS.contains(&kind) || kind == DISRUPTION_TARGET || is_own(kind)
}

/// Whether a condition of this type is a provider's own.
fn is_own(kind: &str) -> bool {
    let domain = kind.split_once('/').and_then(|(domain, _)| domain.strip_suffix(DOMAIN));
    domain.is_some_and(|sub| sub.is_empty() || sub.ends_with('.')) && kind != PLACED_CONDITION
}

fn find<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// The provider's own conditions. Those that the API server would refuse, and the whole status with them, are reported and left out.
fn own(reported: &PodStatus, refused: &mut Vec<String>) -> Vec<PodCondition> {
    let mut all: Vec<PodCondition> = Vec::new();
    let said = reported.conditions.iter().flatten().filter(|one| is_own(&one.type_));
    for one in said.filter(|one| !OURS.contains(&one.type_.as_str())) {
        let known_status = matches!(one.status.as_str(), "True" | "False" | "Unknown");
        if !is_qualified(&one.type_) {
            refused.push(format!("the condition {:?}, which no condition can be called", one.type_));
        } else if !known_status {
            refused.push(format!("{:?} of the condition {}, which there is not", one.status, one.type_));
        } else if all.iter().all(|known| known.type_ != one.type_) {
            all.push(one.clone());
        }
    }
    all
}

/// Whether the API server accepts this as the type of a condition: a domain and a name.
fn is_qualified(kind: &str) -> bool {
    let Some((domain, name)) = kind.split_once('/') else { return false };
    let between = |text: &str, inside: fn(u8) -> bool, end: fn(&u8) -> bool| {
        text.bytes().all(inside)
            && text.bytes().next().as_ref().is_some_and(end)
            && text.bytes().last().as_ref().is_some_and(end)
    };
    let lower = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let parts = domain.split('.').all(|part| {
        between(part, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-', lower)
    });
    let named = between(
        name,
        |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte),
        u8::is_ascii_alphanumeric,
    );
    parts && domain.len() <= 253 && named && name.len() <= 63
}

pub(super) fn compose(
    pod: &Pod,
    there: &PodStatus,
    reported: &PodStatus,
    context: &StatusContext,
    status: &mut PodStatus,
    refused: &mut Vec<String>,
) {
    let phase = status.phase.clone().unwrap_or_default();
    let said = |kind: &str| {
        let mut conditions = reported.conditions.iter().flatten();
        conditions.find(|condition| condition.type_ == kind && fits(condition, &phase)).cloned()
    };
    let terminal = is_terminal(Some(&phase));
    let initialized = said(INITIALIZED).unwrap_or_else(|| initialized(status));
    let containers = if terminal {
        // A pod that has ended is not ready; the provider may give the reason.
        let unready = said(CONTAINERS_READY).filter(|condition| condition.status != "True");
        unready.filter(|_| is_complete(reported)).unwrap_or_else(|| ended(CONTAINERS_READY, status))
    } else {
        said(CONTAINERS_READY).unwrap_or_else(|| containers_ready(pod, status))
    };
    let to_start = said(READY_TO_START).unwrap_or_else(|| {
        let has_address = status.pod_ip.is_some() && !terminal;
        condition(READY_TO_START, has_address, None, None)
    });
    // In the kubelet's order, in which they are shown.
    let mut all = vec![to_start, initialized, ready(pod, there, &containers), containers];
    all.extend([SCHEDULED, RESTARTING].into_iter().filter_map(said));
    // The controller's own decisions override the provider's, and a pod that has ended does not change any more.
    let verdict =
        |kind| context.own_conditions.iter().find(|one| one.type_ == kind).cloned().or_else(|| said(kind));
    all.extend(PASSING.into_iter().filter(|_| !terminal).filter_map(verdict));
    all.extend(own(reported, refused));
    let holds = |one: &&PodCondition| one.status == "True";
    let target = find(there, DISRUPTION_TARGET);
    let news =
        find(reported, DISRUPTION_TARGET).filter(holds).filter(|_| !target.as_ref().is_some_and(holds));
    all.extend(news.cloned());
    for condition in &mut all {
        stamp(condition, there, context.now, context.generation);
    }
    // Whoever set it first.
    all.extend(target.filter(|_| news.is_none()).cloned());
    status.conditions = Some(all);
}

fn condition(kind: &str, holds: bool, reason: Option<&str>, message: Option<String>) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        ..PodCondition::default()
    }
}

fn ended(kind: &str, status: &PodStatus) -> PodCondition {
    let reason = if status.phase.as_deref() == Some("Succeeded") { "PodCompleted" } else { "PodFailed" };
    condition(kind, false, Some(reason), None)
}

fn initialized(status: &PodStatus) -> PodCondition {
    let incomplete: Vec<&str> = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|one| {
            let ended = one.state.as_ref().and_then(|state| state.terminated.as_ref());
            let done = ended.is_some_and(|ended| ended.exit_code == 0);
            // A sidecar counts as initialised once it has started.
            !done && one.started != Some(true)
        })
        .map(|one| one.name.as_str())
        .collect();
    let message = || format!("containers with incomplete status: [{}]", incomplete.join(" "));
    let holds = incomplete.is_empty();
    condition(INITIALIZED, holds, (!holds).then_some("ContainersNotInitialized"), (!holds).then(message))
}

fn containers_ready(pod: &Pod, status: &PodStatus) -> PodCondition {
    let spec = pod.spec.as_ref();
    let sidecar = |name: &str| {
        let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
        init.iter().any(|one| one.name == name && one.restart_policy.as_deref() == Some("Always"))
    };
    let sidecars = status.init_container_statuses.iter().flatten().filter(|one| sidecar(&one.name));
    let unready: Vec<&str> = sidecars
        .chain(status.container_statuses.iter().flatten())
        .filter(|one: &&ContainerStatus| !one.ready)
        .map(|one| one.name.as_str())
        .collect();
    let message = || format!("containers with unready status: [{}]", unready.join(" "));
    let holds = unready.is_empty() && status.container_statuses.as_ref().is_some_and(|all| !all.is_empty());
    condition(CONTAINERS_READY, holds, (!holds).then_some("ContainersNotReady"), (!holds).then(message))
}

/// Whether a provider's condition fits this phase: the end that it reports may differ from the one that was decided.
fn fits(condition: &PodCondition, phase: &str) -> bool {
    match condition.reason.as_deref() {
        Some("PodCompleted") => phase != "Failed",
        Some("PodFailed") => phase != "Succeeded",
        _ => true,
    }
}

/// Ready: the containers, and every readiness gate, which are other controllers' conditions.
fn ready(pod: &Pod, there: &PodStatus, containers: &PodCondition) -> PodCondition {
    if containers.status != "True" {
        let reason = containers.reason.as_deref().or(Some("ContainersNotReady"));
        return condition(READY, false, reason, containers.message.clone());
    }
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let closed = gates.iter().filter_map(|gate| {
        let kind = &gate.condition_type;
        let found = there.conditions.iter().flatten().find(|condition| condition.type_ == *kind);
        match found.map(|condition| condition.status.as_str()) {
            Some("True") => None,
            Some(other) => {
                Some(format!("the status of pod readiness gate {kind:?} is not \"True\", but {other}"))
            }
            None => Some(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
        }
    });
    let closed: Vec<String> = closed.collect();
    let holds = closed.is_empty();
    condition(READY, holds, (!holds).then_some("ReadinessGatesNotReady"), (!holds).then(|| closed.join(", ")))
}

/// The time of a condition moves only when its status does.
fn stamp(condition: &mut PodCondition, there: &PodStatus, now: Timestamp, generation: Option<i64>) {
    let before = there.conditions.iter().flatten().find(|known| known.type_ == condition.type_);
    let same = before.filter(|known| known.status == condition.status);
    condition.last_transition_time =
        same.and_then(|known| known.last_transition_time.clone()).or_else(|| Some(Time(whole_seconds(now))));
    condition.last_probe_time = None;
    condition.observed_generation = generation.or_else(|| before?.observed_generation);
}
