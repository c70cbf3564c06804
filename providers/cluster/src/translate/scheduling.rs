//! What the lower scheduler gets: node selection, affinity, tolerations and classes.
//!
//! The upper scheduler consumes the scheduling fields of the upper pod. The lower pod gets those of the annotation
//! [`LOWER`](names::LOWER) and of the configuration instead.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity, PodSpec, Toleration,
        TopologySpreadConstraint,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Deserialize;

use super::{ClusterClasses, Policy, Rejection};
use crate::names;

/// The RuntimeClass by which a pod opts in to a virtual node. It means nothing in the lower cluster.
const OPT_IN: &str = "virtual-kubelet";
/// The taint of virtual nodes. A pod tolerates it to come to one, not to come to the next one below.
const TAINT: &str = "virtual-kubelet.io/provider";
/// What the admission above lets every pod tolerate for a while, as the one below does.
const BY_DEFAULT: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// For how long.
const BY_DEFAULT_SECONDS: i64 = 300;

/// What holds below instead of what the upper scheduler was told. What it does not say is as for other pods.
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
    /// Reads it from our annotation, or from tensile-kube's where there is none.
    pub(super) fn from_annotations(upper: &ObjectMeta) -> Result<Self, Rejection> {
        let read = |key: &'static str| names::annotation(upper, key).map(|text| (key, text));
        let Some((key, text)) = read(names::LOWER).or_else(|| read(names::CLUSTER_SELECTOR)) else {
            return Ok(Self::default());
        };
        serde_json::from_str(text).map_err(|error| {
            Rejection(format!(
                "annotation {key}: {error}: it is JSON with nodeSelector, affinity, tolerations, topologySpreadConstraints, \
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
    policy: &Policy,
    classes: &ClusterClasses,
) -> Result<(), Rejection> {
    below.scheduler_name.clone_from(&lower.scheduler_name);
    // One that is unknown below would have the pod refused.
    below.priority_class_name = lower.priority_class_name.clone().or_else(|| {
        let name = said(upper.priority_class_name.as_ref())?;
        mapped(&policy.priority_classes, name)
            .or_else(|| classes.priority_classes.contains(name).then(|| name.clone()))
    });
    below.runtime_class_name = match &lower.runtime_class_name {
        Some(name) => Some(name.clone()),
        None => said(upper.runtime_class_name.as_ref())
            .map(|name| runtime_class(name, policy, classes))
            .transpose()?
            .flatten(),
    };
    Ok(())
}

/// A RuntimeClass is often there for safety, so a pod does not lose one without a word.
fn runtime_class(
    name: &String,
    policy: &Policy,
    classes: &ClusterClasses,
) -> Result<Option<String>, Rejection> {
    if let Some(other) = mapped(&policy.runtime_classes, name) {
        Ok(Some(other))
    } else if classes.runtime_classes.contains(name) {
        Ok(Some(name.clone()))
    } else if name == OPT_IN {
        Ok(None)
    } else {
        Err(Rejection(format!(
            "spec.runtimeClassName: the lower cluster has no RuntimeClass {name}: make it there, name another one for it in \
             `runtimeClasses` of the provider's configuration, or take it out of the pod"
        )))
    }
}

fn mapped(map: &BTreeMap<String, String>, name: &str) -> Option<String> {
    map.get(name).cloned()
}

fn said(name: Option<&String>) -> Option<&String> {
    name.filter(|name| !name.is_empty())
}

/// Sets what the lower scheduler is told.
pub(super) fn set_placement(
    below: &mut PodSpec,
    upper: &PodSpec,
    lower: LowerOverrides,
    policy: &Policy,
) -> Result<(), Rejection> {
    let mut selector = lower.node_selector.unwrap_or_default();
    // The pod may choose among the nodes that the virtual one stands for, and not leave them.
    selector.extend(policy.node_selector.clone());
    below.node_selector = (!selector.is_empty()).then_some(selector);

    let mut tolerations: Vec<Toleration> = Vec::new();
    let said = lower.tolerations.as_ref().or(upper.tolerations.as_ref());
    let kept = said.into_iter().flatten().filter(|toleration| !is_dropped(toleration));
    for toleration in kept.chain(&policy.tolerations) {
        if !tolerations.contains(toleration) {
            tolerations.push(toleration.clone());
        }
    }
    below.tolerations = (!tolerations.is_empty()).then_some(tolerations);

    below.topology_spread_constraints = lower.topology_spread_constraints.filter(|list| !list.is_empty());
    below.affinity = affinity(upper.affinity.as_ref(), lower.affinity, policy)?;
    Ok(())
}

fn is_dropped(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    key == TAINT
        || (BY_DEFAULT.contains(&key)
            && toleration.operator.as_deref() == Some("Exists")
            && toleration.effect.as_deref() == Some("NoExecute")
            && toleration.toleration_seconds == Some(BY_DEFAULT_SECONDS))
}

fn affinity(
    upper: Option<&Affinity>,
    lower: Option<Affinity>,
    policy: &Policy,
) -> Result<Option<Affinity>, Rejection> {
    let lower = lower.unwrap_or_default();
    let kept = upper.filter(|_| policy.keeps_pod_affinity);
    let mut affinity = Affinity {
        node_affinity: lower.node_affinity,
        pod_affinity: lower.pod_affinity.or_else(|| kept?.pod_affinity.clone()),
        pod_anti_affinity: lower.pod_anti_affinity.or_else(|| kept?.pod_anti_affinity.clone()),
    };
    if let Some(near) = affinity.pod_affinity.take() {
        affinity.pod_affinity = self::near(near, policy)?;
    }
    if let Some(far) = affinity.pod_anti_affinity.take() {
        affinity.pod_anti_affinity = self::far(far, policy);
    }
    Ok((affinity != Affinity::default()).then_some(affinity))
}

fn near(mut near: PodAffinity, policy: &Policy) -> Result<Option<PodAffinity>, Rejection> {
    for term in near.required_during_scheduling_ignored_during_execution.iter_mut().flatten() {
        let namespaces = term.namespaces.clone().unwrap_or_default();
        if !fit(term, policy) {
            return Err(Rejection(format!(
                "spec.affinity.podAffinity: it needs pods of {} beside it: no such namespace has a place in the lower cluster",
                namespaces.join(", ")
            )));
        }
    }
    let preferred = &mut near.preferred_during_scheduling_ignored_during_execution;
    if let Some(terms) = preferred {
        terms.retain_mut(|weighted| fit(&mut weighted.pod_affinity_term, policy));
    }
    *preferred = preferred.take().filter(|terms| !terms.is_empty());
    Ok((near != PodAffinity::default()).then_some(near))
}

/// A pod is far from all that is not there.
fn far(mut far: PodAntiAffinity, policy: &Policy) -> Option<PodAntiAffinity> {
    let required = &mut far.required_during_scheduling_ignored_during_execution;
    if let Some(terms) = required {
        terms.retain_mut(|term| fit(term, policy));
    }
    *required = required.take().filter(|terms| !terms.is_empty());
    let preferred = &mut far.preferred_during_scheduling_ignored_during_execution;
    if let Some(terms) = preferred {
        terms.retain_mut(|weighted| fit(&mut weighted.pod_affinity_term, policy));
    }
    *preferred = preferred.take().filter(|terms| !terms.is_empty());
    (far != PodAntiAffinity::default()).then_some(far)
}

/// Makes of a term one that says the same below; `false` if it is about no pod there.
fn fit(term: &mut PodAffinityTerm, policy: &Policy) -> bool {
    // The API server above has made selectors of these labels. The one below would do so once more, and refuse to have both.
    let selects = |operator: &str, key: &String| {
        let expressions =
            term.label_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
        expressions.into_iter().any(|expression| expression.key == *key && expression.operator == operator)
    };
    let without = |keys: Option<&Vec<String>>, operator: &str| {
        let keys: Vec<String> = keys?.iter().filter(|key| !selects(operator, key)).cloned().collect();
        (!keys.is_empty()).then_some(keys)
    };
    let match_label_keys = without(term.match_label_keys.as_ref(), "In");
    let mismatch_label_keys = without(term.mismatch_label_keys.as_ref(), "NotIn");
    (term.match_label_keys, term.mismatch_label_keys) = (match_label_keys, mismatch_label_keys);

    // No list means the pod's own namespace, so a list must not become none.
    let Some(upper) = term.namespaces.take().filter(|list| !list.is_empty()) else { return true };
    let lower: Vec<String> = upper.iter().filter_map(|name| policy.namespaces.to_lower(name)).collect();
    let speaks = !lower.is_empty() || term.namespace_selector.is_some();
    term.namespaces = (!lower.is_empty()).then_some(lower);
    speaks
}
