//! The placement of a pod: operating system, node affinity and selector, taints.

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_provider::{node_selector, taint::tolerates};

use super::AdmissionVerdict;

/// The kubelet's reason for a pod whose affinity does not match.
pub(super) const AFFINITY: &str = "NodeAffinity";

pub(super) fn predicate(name: &str, why: &str) -> AdmissionVerdict {
    AdmissionVerdict::rejected(name, format!("Predicate {name} failed: {why}"))
}

pub(super) fn operating_system(pod: &Pod, node: &Node) -> Option<AdmissionVerdict> {
    let wanted = pod.spec.as_ref()?.os.as_ref()?.name.as_str();
    let there = node.status.as_ref()?.node_info.as_ref()?.operating_system.as_str();
    (wanted != there).then(|| {
        AdmissionVerdict::rejected(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        )
    })
}

pub(super) fn affinity(pod: &Pod, node: &Node) -> Option<AdmissionVerdict> {
    let spec = pod.spec.as_ref()?;
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let affinity = node_selector::required_affinity(spec);
    (!node_selector::selects(spec.node_selector.as_ref(), affinity, &label, name))
        .then(|| predicate(AFFINITY, "node(s) didn't match Pod's node affinity/selector"))
}

/// Only taints that evict pods: the rest is for the scheduler.
pub(super) fn taints(pod: &Pod, node: &Node) -> Option<AdmissionVerdict> {
    let taints = node.spec.as_ref()?.taints.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref()?;
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let untolerated = taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .any(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)));
    untolerated.then(|| predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
}
