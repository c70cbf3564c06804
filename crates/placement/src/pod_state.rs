//! What pods say about their way to a node.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition, PodSpec, Volume},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use vk_provider::{
    placement::{REFUSED_REASON, TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION, trial_began, trial_node},
    pod::is_terminal,
};

use crate::names;

/// Labels and annotations in which the pods of one controller differ.
const KEYS_OF_ONE_POD: [&str; 6] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "pod-template-generation",
    TRIAL_LABEL,
    TRIAL_UNTIL_ANNOTATION,
];
/// The volume with a token that admission adds has a name of its own in each pod.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// Whether a pod waits, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gating {
    /// It has our gate and no other one.
    Ours,
    /// It also has gates of others, which decide first.
    OthersFirst,
    /// It does not have our gate.
    Open,
}

/// What the scheduler of the backend has decided about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LowerVerdict<'a> {
    /// Nothing is known.
    Unknown,
    Scheduled,
    /// Not yet, for this reason.
    NotScheduled(&'a str),
    /// The node does not take the pod, and will not.
    Refused(&'a str),
}

/// The node to which the pod is bound.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// The node on which room is kept for the pod.
pub(crate) fn nominated_node(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether the pod has our gate.
pub(crate) fn gating(pod: &Pod) -> Gating {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_deref()).unwrap_or_default();
    match (gates.iter().any(|gate| gate.name == names::GATE), gates.len()) {
        (false, _) => Gating::Open,
        (true, 1) => Gating::Ours,
        (true, _) => Gating::OthersFirst,
    }
}

/// An annotation of the pod.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A condition of the pod.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// What the scheduler of the backend has decided.
pub(crate) fn lower_verdict(pod: &Pod) -> LowerVerdict<'_> {
    let Some(scheduled) = condition(pod, names::SCHEDULED) else { return LowerVerdict::Unknown };
    let message = scheduled.message.as_deref().filter(|message| !message.is_empty());
    let message = message.unwrap_or("no reason given");
    match scheduled.status.as_str() {
        "True" => LowerVerdict::Scheduled,
        "False" if scheduled.reason.as_deref() == Some(REFUSED_REASON) => LowerVerdict::Refused(message),
        "False" => LowerVerdict::NotScheduled(message),
        _ => LowerVerdict::Unknown,
    }
}

/// The node that may run the pod although it is not bound yet: the one on which it is, or was, on trial. A label that a user has set
/// does not count.
pub(crate) fn unbound_trial_node(pod: &Pod) -> Option<&str> {
    trial_node(pod).filter(|_| trial_began(pod).is_some() && node(pod).is_none() && !is_terminal(pod))
}

/// The names of the claims that the pod's volumes need.
pub(crate) fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claim = |volume: &Volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.metadata.name.as_deref()?, volume.name)),
        (None, None) => None,
    };
    volumes.filter_map(claim).collect()
}

/// Whether placement has removed the gate of this pod, which is not bound yet.
pub(crate) fn is_ungated_by_us(pod: &Pod) -> bool {
    let is_placed = condition(pod, names::PLACED).is_some_and(|condition| condition.status == "True");
    (is_placed || trial_began(pod).is_some())
        && gating(pod) == Gating::Open
        && node(pod).is_none()
        && !is_terminal(pod)
}

/// The namespace and the name of the group to which the pod belongs, as one text. A pod that only says how large its group is belongs to one
/// without a name, which is an error for its user to see.
pub(crate) fn group(pod: &Pod) -> Option<String> {
    let labels = pod.metadata.labels.as_ref();
    let name = labels.and_then(|labels| labels.get(names::GROUP)).map(String::as_str);
    let name = name.or_else(|| group_size(pod).map(|_| ""))?;
    Some(format!("{}/{name}", pod.metadata.namespace.as_deref().unwrap_or_default()))
}

/// What the pod says about the size of its group.
pub(crate) fn group_size(pod: &Pod) -> Option<&str> {
    annotation(pod, names::GROUP_SIZE)
}

/// The node that the pod has, or will have because its gate was removed for it; `None` if the pod waits, is being deleted or has ended.
pub(crate) fn placed_node(pod: &Pod) -> Option<&str> {
    if is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let ungated = || {
        let pinned = || pod.spec.as_ref()?.node_selector.as_ref()?.get(names::HOSTNAME).map(String::as_str);
        is_ungated_by_us(pod)
            .then(|| unbound_trial_node(pod).or_else(|| nominated_node(pod)).or_else(pinned))?
    };
    node(pod).or_else(ungated)
}

/// Whether the node may not have taken notice of a bound pod: nothing is known about its containers, nor what the lower scheduler said.
pub(crate) fn may_be_unseen_by_node(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    phase.is_none_or(|phase| phase == "Pending")
        && containers.is_none_or(Vec::is_empty)
        && lower_verdict(pod) == LowerVerdict::Unknown
}

/// Whether a container of the pod has run.
pub(crate) fn has_run(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().any(|container| {
        let state = container.state.as_ref();
        let ended = container.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
        let ran = state.is_some_and(|state| state.running.is_some() || state.terminated.is_some());
        ran || ended || container.restart_count > 0
    })
}

/// The controller of the pod.
pub(crate) fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Why the pod cannot be placed: more decides where it may go than placement keeps.
pub(crate) fn too_large(pod: &Pod) -> Option<&str> {
    annotation(pod, names::TOO_LARGE)
}

/// The version of the pod.
pub(crate) fn version(pod: &Pod) -> String {
    pod.metadata.resource_version.clone().unwrap_or_default()
}

/// The pod's priority.
pub(crate) fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default()
}

/// A digest of everything that decides where a pod may go: pods with equal shapes can take each other's place. It is as long for every pod,
/// because it is a key of several maps.
pub(crate) fn shape(pod: &Pod) -> String {
    let common = |all: &Option<BTreeMap<String, String>>| -> BTreeMap<String, String> {
        let all = all.iter().flatten().filter(|(key, _)| !KEYS_OF_ONE_POD.contains(&key.as_str()));
        all.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let (labels, annotations) = (common(&pod.metadata.labels), common(&pod.metadata.annotations));
    let spec = pod.spec.as_ref().map(common_spec);
    let controller = controller(pod).map(|owner| &owner.uid);
    let parts = (&pod.metadata.namespace, controller, labels, annotations, spec);
    let text = serde_json::to_vec(&parts).ok();
    let digest = text.and_then(|text| digest(&SHA256, &text).as_ref().first_chunk().copied());
    match digest {
        Some(bytes) => format!("{:032x}", u128::from_be_bytes(bytes)),
        None => pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// The spec without what differs between the pods of one controller.
fn common_spec(spec: &PodSpec) -> PodSpec {
    let mut spec = PodSpec { hostname: None, node_name: None, scheduling_gates: None, ..spec.clone() };
    let is_token = |name: &str| name.starts_with(TOKEN_VOLUME);
    if let Some(volumes) = &mut spec.volumes {
        for volume in volumes.iter_mut().filter(|volume| is_token(&volume.name)) {
            *volume = Volume { name: TOKEN_VOLUME.to_owned(), ..Volume::default() };
        }
    }
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for mount in containers.flat_map(|container| container.volume_mounts.iter_mut().flatten()) {
        if is_token(&mount.name) {
            TOKEN_VOLUME.clone_into(&mut mount.name);
        }
    }
    spec
}

/// Removes everything from a pod that has succeeded but for its identity, its group and its controller.
pub(crate) fn trim_succeeded_pod(pod: &mut Pod) {
    (pod.spec, pod.status, pod.metadata.managed_fields, pod.metadata.annotations) = (None, None, None, None);
    pod.metadata.labels.iter_mut().for_each(|labels| labels.retain(|key, _| key == names::GROUP));
}

/// Whether the pod has a node selector on the host name: of its user, as long as it has its gate.
pub(crate) fn selects_host_name(pod: &Pod) -> bool {
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    selector.is_some_and(|selector| selector.contains_key(names::HOSTNAME))
}

/// The pod as its controller would create it again, without what placement added.
pub(crate) fn unpinned(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let annotations = pod.metadata.annotations.as_mut();
    if annotations.and_then(|annotations| annotations.remove(names::PINNED)).is_some()
        && let Some(spec) = &mut pod.spec
    {
        // A pod without a selector has another shape than one with an empty one.
        spec.node_selector.as_mut().map(|selector| selector.remove(names::HOSTNAME));
        spec.node_selector.take_if(|selector| selector.is_empty());
    }
    if let Some(spec) = &mut pod.spec {
        spec.node_name = None;
    }
    pod
}

#[cfg(test)]
mod tests;
