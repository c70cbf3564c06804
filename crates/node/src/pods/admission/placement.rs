//! The placement of a pod: operating system, node affinity and selector, taints.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec};
use vk_provider::taint::tolerates;

use super::AdmissionVerdict;

/// The kubelet's reason for a pod whose affinity does not match.
pub(super) const AFFINITY: &str = "NodeAffinity";

type Labels = BTreeMap<String, String>;

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
    let none = Labels::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    (!wants(spec, labels, name))
        .then(|| predicate(AFFINITY, "node(s) didn't match Pod's node affinity/selector"))
}

fn wants(spec: &PodSpec, labels: &Labels, name: &str) -> bool {
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| matches_term(term, labels, name))
        })
}

/// A term without any requirement matches nothing.
fn matches_term(term: &NodeSelectorTerm, labels: &Labels, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(name);
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|one| meets(one, labels.get(&one.key).map(String::as_str)))
        && fields.iter().all(|one| meets(one, field(&one.key)))
}

fn meets(requirement: &NodeSelectorRequirement, there: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|known| known == value);
    let numbers = || {
        let [limit] = values else { return None };
        Some((there?.parse::<i64>().ok()?, limit.parse::<i64>().ok()?))
    };
    match requirement.operator.as_str() {
        "In" => there.is_some_and(listed),
        "NotIn" => !there.is_some_and(listed),
        "Exists" => there.is_some(),
        "DoesNotExist" => there.is_none(),
        "Gt" => numbers().is_some_and(|(there, limit)| there > limit),
        "Lt" => numbers().is_some_and(|(there, limit)| there < limit),
        _ => false,
    }
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
