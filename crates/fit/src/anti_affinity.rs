//! Required pod anti-affinity of pods that are on nodes: it keeps new pods away.
//!
//! Topologies are not modelled. Whether a new pod is selected at all is, because most pods are selected by no other.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use vk_provider::node_selector::meets;

/// The pods that a pod keeps away.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AntiAffinityTerm {
    /// The namespaces of these pods; `None` is all of them.
    namespaces: Option<Vec<String>>,
    labels: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LabelRequirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

// === impl AntiAffinityTerm ===

impl AntiAffinityTerm {
    /// Whether a pod with these labels is kept away from somewhere.
    pub(crate) fn selects(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let namespaces = self.namespaces.as_deref();
        namespaces.is_none_or(|names| names.iter().any(|name| name == namespace))
            && self
                .labels
                .iter()
                .all(|one| meets(&one.operator, &one.values, labels.get(&one.key).map(String::as_str)))
    }
}

/// The required anti-affinity terms of a pod.
pub(crate) fn required(pod: &Pod) -> Vec<AntiAffinityTerm> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.pod_anti_affinity.as_ref());
    let terms =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_deref());
    let term = |term: &k8s_openapi::api::core::v1::PodAffinityTerm| {
        let listed = term.namespaces.as_deref().unwrap_or_default();
        let namespaces = match &term.namespace_selector {
            // The labels of namespaces are not known, so any may be selected.
            Some(_) => None,
            None if listed.is_empty() => Some(pod.metadata.namespace.iter().cloned().collect()),
            None => Some(listed.to_vec()),
        };
        // Without a selector a term selects no pods.
        Some(AntiAffinityTerm { namespaces, labels: label_requirements(term.label_selector.as_ref()?) })
    };
    terms.unwrap_or_default().iter().filter_map(term).collect()
}

fn label_requirements(selector: &LabelSelector) -> Vec<LabelRequirement> {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| LabelRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: vec![value.clone()],
    });
    let expressions = selector.match_expressions.iter().flatten().map(|one| LabelRequirement {
        key: one.key.clone(),
        operator: one.operator.clone(),
        values: one.values.clone().unwrap_or_default(),
    });
    labels.chain(expressions).collect()
}
