//! Node selector and required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec};
use serde_json::json;
use vk_provider::{label_selector::Requirement, node_selector};

use super::{
    Settings,
    changes::{Changes, pointer},
    reason,
};
use crate::names;

/// The path of required node affinity.
const REQUIRED: [&str; 4] =
    ["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];

/// Moves entries of the node selector.
pub(super) fn convert_selector(spec: &PodSpec, settings: &Settings, changes: &mut Changes) {
    let mut kept: BTreeMap<&str, &str> = BTreeMap::new();
    let mut moved = Vec::new();
    for (key, value) in spec.node_selector.iter().flatten() {
        match Requirement::equals(key, value) {
            Ok(requirement) if !settings.is_upper(key) => moved.push(requirement),
            // What is no label stays: the API server refuses the pod with a good message.
            _ => {
                kept.insert(key, value);
            }
        }
    }
    if moved.is_empty() {
        return;
    }
    for requirement in &moved {
        changes.require(requirement);
    }
    changes.replace(pointer(["spec", "nodeSelector"]), kept);
}

/// Moves required node affinity. Its terms are alternatives, and the requirements of a term hold together.
pub(super) fn convert_required(pod: &Pod, spec: &PodSpec, settings: &Settings, changes: &mut Changes) {
    let Some(required) = node_selector::required_affinity(spec) else { return };
    match required.node_selector_terms.as_slice() {
        [] => {}
        [term] => convert_term(term, settings, changes),
        terms => convert_terms(terms, pod, settings, changes),
    }
}

/// Moves the requirements of a single term.
fn convert_term(term: &NodeSelectorTerm, settings: &Settings, changes: &mut Changes) {
    let mut kept: Vec<&NodeSelectorRequirement> = Vec::new();
    let mut moved = Vec::new();
    for expression in expressions(term) {
        match Requirement::try_from(expression) {
            Ok(requirement) if !settings.is_upper(&expression.key) => moved.push(requirement),
            _ => kept.push(expression),
        }
    }
    if moved.is_empty() {
        return;
    }
    for requirement in &moved {
        changes.require(requirement);
    }
    let path = pointer(REQUIRED.into_iter().chain(["nodeSelectorTerms", "0", "matchExpressions"]));
    if !kept.is_empty() {
        changes.replace(path, kept);
    } else if has_fields(term) {
        changes.remove(path);
    } else {
        // An empty term would select nothing.
        changes.remove(pointer(REQUIRED));
    }
}

/// Moves several terms as they are, which is possible only for all together.
fn convert_terms(terms: &[NodeSelectorTerm], pod: &Pod, settings: &Settings, changes: &mut Changes) {
    let mut all = terms.iter().flat_map(expressions);
    let any_lower = all.any(|expression| !settings.is_upper(&expression.key));
    let is_upper = |term: &NodeSelectorTerm| {
        has_fields(term) || expressions(term).iter().any(|one| settings.is_upper(&one.key))
    };
    let annotated = |key: &str| pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
    if !any_lower {
        return;
    }
    if terms.iter().any(is_upper) {
        changes.keep(reason::MIXED_TERMS);
    } else if annotated(names::LOWER) || annotated(names::CLUSTER_SELECTOR) {
        changes.keep(reason::LOWER_IS_SET);
    } else if terms.iter().flat_map(expressions).all(|one| Requirement::try_from(one).is_ok()) {
        let terms: Vec<_> = terms.iter().map(|term| json!({"matchExpressions": expressions(term)})).collect();
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        changes.annotate(names::LOWER, json!({"affinity": {"nodeAffinity": required}}).to_string());
        changes.remove(pointer(REQUIRED));
    }
}

fn expressions(term: &NodeSelectorTerm) -> &[NodeSelectorRequirement] {
    term.match_expressions.as_deref().unwrap_or_default()
}

/// Fields name nodes of the upper cluster.
fn has_fields(term: &NodeSelectorTerm) -> bool {
    !term.match_fields.as_deref().unwrap_or_default().is_empty()
}
