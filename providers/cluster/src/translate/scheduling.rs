//! What the lower scheduler gets: node selection, affinity, tolerations and classes.
//!
//! The upper scheduler consumes the scheduling fields of the upper pod. The lower pod gets those of the annotation
//! [`LOWER`](names::LOWER) and of the configuration instead, and what [conversion](super::conversion) has moved into other annotations.
//! Preferences are for both schedulers.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity, PodSpec, Toleration,
        TopologySpreadConstraint,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Deserialize;
use vk_provider::node_selector::HOSTNAME;

use super::{
    ClusterClasses, Rejection, TranslationPolicy, choice,
    conversion::{self, MovedConstraints},
};
use crate::names;

/// The RuntimeClass by which a pod opts in to a virtual node. It means nothing in the lower cluster.
const OPT_IN: &str = "virtual-kubelet";
/// The taint of virtual nodes. Pods tolerate it to run on this virtual node, not on the next one in the lower cluster.
const TAINT: &str = "virtual-kubelet.io/provider";
/// Taints that the upper admission tolerates for every pod by default. The lower admission does the same.
const DEFAULT_TOLERATED: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// For how long.
const DEFAULT_TOLERATION_SECONDS: i64 = 300;

/// Scheduling fields for the lower pod. Missing fields have the default of other pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct LowerOverrides {
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) affinity: Option<Affinity>,
    pub(super) tolerations: Option<Vec<Toleration>>,
    pub(super) topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    pub(super) scheduler_name: Option<String>,
    pub(super) priority_class_name: Option<String>,
    pub(super) runtime_class_name: Option<String>,
}

// === impl LowerOverrides ===

impl LowerOverrides {
    /// Reads our annotation, or that of tensile-kube if there is none.
    pub(super) fn from_annotations(upper: &ObjectMeta) -> Result<Self, Rejection> {
        let read = |key: &'static str| names::annotation(upper, key).map(|text| (key, text));
        let Some((key, text)) = read(names::LOWER).or_else(|| read(names::CLUSTER_SELECTOR)) else {
            return Ok(Self::default());
        };
        serde_json::from_str(text).map_err(|error| {
            Rejection(format!(
                "annotation {key}: {error}: expected JSON with nodeSelector, affinity, tolerations, topologySpreadConstraints, \
                 schedulerName, priorityClassName, runtimeClassName, as in the spec of a pod"
            ))
        })
    }
}

/// Sets the classes and the scheduler of the lower pod.
pub(super) fn set_classes(
    below: &mut PodSpec,
    upper: &PodSpec,
    lower: &LowerOverrides,
    policy: &TranslationPolicy,
    classes: &ClusterClasses,
) -> Result<(), Rejection> {
    let allowed = &policy.allowed;
    let in_annotation = |field: &str| format!("annotation {}: {field}", names::LOWER);
    if let Some(name) = &lower.scheduler_name {
        choice::check_name(&in_annotation("schedulerName"), name, &allowed.schedulers, "allow.schedulers")?;
    }
    below.scheduler_name.clone_from(&lower.scheduler_name);
    below.priority_class_name = match &lower.priority_class_name {
        Some(name) => {
            let field = in_annotation("priorityClassName");
            choice::check_name(&field, name, &allowed.priority_classes, "allow.priorityClasses")?;
            Some(name.clone())
        }
        None => non_empty(upper.priority_class_name.as_ref())
            .and_then(|name| priority_class(name, policy, classes)),
    };
    below.runtime_class_name = match &lower.runtime_class_name {
        Some(name) => {
            let field = in_annotation("runtimeClassName");
            choice::check_name(&field, name, &allowed.runtime_classes, "allow.runtimeClasses")?;
            Some(name.clone())
        }
        None => non_empty(upper.runtime_class_name.as_ref())
            .map(|name| runtime_class(name, policy, classes))
            .transpose()?
            .flatten(),
    };
    Ok(())
}

/// The lower class of an upper PriorityClass: a mapped one, or the same if it is allowed. Otherwise none: its priority is relative to
/// others of the upper cluster. A pod with an unknown class would be rejected.
fn priority_class(name: &String, policy: &TranslationPolicy, classes: &ClusterClasses) -> Option<String> {
    let same = || policy.allowed.priority_classes.contains(name) && classes.priority_classes.contains(name);
    lookup(&policy.priority_classes, name).or_else(|| same().then(|| name.clone()))
}

/// A RuntimeClass is often a security measure, so it is never dropped silently.
fn runtime_class(
    name: &String,
    policy: &TranslationPolicy,
    classes: &ClusterClasses,
) -> Result<Option<String>, Rejection> {
    let exists = classes.runtime_classes.contains(name);
    if let Some(other) = lookup(&policy.runtime_classes, name) {
        Ok(Some(other))
    } else if name == OPT_IN {
        Ok(None)
    } else if exists && policy.allowed.runtime_classes.contains(name) {
        Ok(Some(name.clone()))
    } else if exists {
        Err(Rejection(format!(
            "spec.runtimeClassName: pods may not choose the RuntimeClass {name} of the lower cluster: add it to \
             `allow.runtimeClasses` of the configuration of the provider, map it to another one in `runtimeClasses`, or remove it from \
             the pod"
        )))
    } else {
        Err(Rejection(format!(
            "spec.runtimeClassName: the lower cluster has no RuntimeClass {name}: create it there, map it to another one in \
             `runtimeClasses` of the configuration of the provider, or remove it from the pod"
        )))
    }
}

fn lookup(map: &BTreeMap<String, String>, name: &str) -> Option<String> {
    map.get(name).cloned()
}

fn non_empty(name: Option<&String>) -> Option<&String> {
    name.filter(|name| !name.is_empty())
}

/// Sets node selector, tolerations, spread constraints and affinity of the lower pod.
pub(super) fn set_placement(
    below: &mut PodSpec,
    upper: &PodSpec,
    lower: LowerOverrides,
    moved: &MovedConstraints,
    policy: &TranslationPolicy,
) -> Result<(), Rejection> {
    let mut selector = lower.node_selector.unwrap_or_default();
    // The pod can select among the nodes behind the virtual node, but not leave them.
    selector.extend(policy.node_selector.clone());
    below.node_selector = (!selector.is_empty()).then_some(selector);

    let mut tolerations: Vec<Toleration> = Vec::new();
    let for_upper_node = |one: &Toleration| moved.tolerates_lost && is_lost_toleration(one, None);
    let stated = lower.tolerations.as_ref();
    let kept = stated.or(upper.tolerations.as_ref()).into_iter().flatten();
    // Tolerations of the upper pod are for the upper scheduler, and often tolerate more than anybody means.
    let kept = kept.filter(|one| {
        !is_dropped(one)
            && policy.allowed.allows_toleration(one)
            && (stated.is_some() || !for_upper_node(one))
    });
    for toleration in kept.chain(&policy.tolerations) {
        if !tolerations.contains(toleration) {
            tolerations.push(toleration.clone());
        }
    }
    below.tolerations = (!tolerations.is_empty()).then_some(tolerations);

    let spreads = upper.topology_spread_constraints.as_ref();
    below.topology_spread_constraints =
        moved.spread_constraints(spreads, lower.topology_spread_constraints)?;
    below.affinity = affinity(upper.affinity.as_ref(), lower.affinity, policy)?;
    moved.require_nodes(below);
    Ok(())
}

fn is_dropped(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    key == TAINT || is_lost_toleration(toleration, Some(DEFAULT_TOLERATION_SECONDS))
}

/// Whether a toleration is about a lost node, for this many seconds.
fn is_lost_toleration(toleration: &Toleration, seconds: Option<i64>) -> bool {
    DEFAULT_TOLERATED.contains(&toleration.key.as_deref().unwrap_or_default())
        && toleration.operator.as_deref() == Some("Exists")
        && toleration.effect.as_deref() == Some("NoExecute")
        && toleration.toleration_seconds == seconds
}

fn affinity(
    upper: Option<&Affinity>,
    lower: Option<Affinity>,
    policy: &TranslationPolicy,
) -> Result<Option<Affinity>, Rejection> {
    let lower = lower.unwrap_or_default();
    let kept = upper.filter(|_| policy.keeps_pod_affinity);
    let mut affinity = Affinity {
        node_affinity: conversion::node_affinity(
            upper.and_then(|upper| upper.node_affinity.as_ref()),
            lower.node_affinity,
        ),
        pod_affinity: lower.pod_affinity.or_else(|| kept?.pod_affinity.clone()),
        pod_anti_affinity: lower.pod_anti_affinity.or_else(|| kept?.pod_anti_affinity.clone()),
    };
    if let Some(pod_affinity) = affinity.pod_affinity.take() {
        affinity.pod_affinity = self::pod_affinity(pod_affinity, policy)?;
    }
    if let Some(pod_anti_affinity) = affinity.pod_anti_affinity.take() {
        affinity.pod_anti_affinity = self::pod_anti_affinity(pod_anti_affinity, policy);
    }
    Ok((affinity != Affinity::default()).then_some(affinity))
}

fn pod_affinity(
    mut pod_affinity: PodAffinity,
    policy: &TranslationPolicy,
) -> Result<Option<PodAffinity>, Rejection> {
    for term in pod_affinity.required_during_scheduling_ignored_during_execution.iter_mut().flatten() {
        let namespaces = term.namespaces.clone().unwrap_or_default();
        if !rewrite_term(term, policy) {
            return Err(Rejection(format!(
                "spec.affinity.podAffinity: it requires pods of {}, and none of these namespaces is mapped to the lower cluster",
                namespaces.join(", ")
            )));
        }
    }
    let preferred = &mut pod_affinity.preferred_during_scheduling_ignored_during_execution;
    if let Some(terms) = preferred {
        terms.retain_mut(|weighted| rewrite_term(&mut weighted.pod_affinity_term, policy));
    }
    *preferred = preferred.take().filter(|terms| !terms.is_empty());
    Ok((pod_affinity != PodAffinity::default()).then_some(pod_affinity))
}

/// Terms about pods that are not in the lower cluster are always satisfied.
fn pod_anti_affinity(
    mut pod_anti_affinity: PodAntiAffinity,
    policy: &TranslationPolicy,
) -> Option<PodAntiAffinity> {
    let required = &mut pod_anti_affinity.required_during_scheduling_ignored_during_execution;
    if let Some(terms) = required {
        terms.retain_mut(|term| rewrite_term(term, policy));
    }
    *required = required.take().filter(|terms| !terms.is_empty());
    let preferred = &mut pod_anti_affinity.preferred_during_scheduling_ignored_during_execution;
    if let Some(terms) = preferred {
        terms.retain_mut(|weighted| rewrite_term(&mut weighted.pod_affinity_term, policy));
    }
    *preferred = preferred.take().filter(|terms| !terms.is_empty());
    (pod_anti_affinity != PodAntiAffinity::default()).then_some(pod_anti_affinity)
}

/// Rewrites a term for the lower cluster. Returns `false` if it cannot match any pod there.
fn rewrite_term(term: &mut PodAffinityTerm, policy: &TranslationPolicy) -> bool {
    if term.topology_key == names::MACHINE {
        HOSTNAME.clone_into(&mut term.topology_key);
    }
    let selector = term.label_selector.as_ref();
    let match_label_keys = conversion::unmerged_keys(term.match_label_keys.as_ref(), selector, "In");
    let mismatch_label_keys = conversion::unmerged_keys(term.mismatch_label_keys.as_ref(), selector, "NotIn");
    (term.match_label_keys, term.mismatch_label_keys) = (match_label_keys, mismatch_label_keys);

    // An empty list would mean the namespace of the pod.
    let Some(upper) = term.namespaces.take().filter(|list| !list.is_empty()) else { return true };
    let lower: Vec<String> = upper.iter().filter_map(|name| policy.namespaces.to_lower(name)).collect();
    let matches_any = !lower.is_empty() || term.namespace_selector.is_some();
    term.namespaces = (!lower.is_empty()).then_some(lower);
    matches_any
}
