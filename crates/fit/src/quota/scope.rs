//! The scopes of a quota: which pods it counts.

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, ResourceQuota, ScopedResourceSelectorRequirement};
use vk_provider::{
    node_selector::meets,
    qos::{Qos, qos},
};

/// Whether a quota counts a pod: it must be in all of its scopes.
pub(super) fn matches(quota: &ResourceQuota, pod: &Pod) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let selector = spec.scope_selector.as_ref().and_then(|selector| selector.match_expressions.as_deref());
    spec.scopes.iter().flatten().all(|scope| is_in(scope, None, pod))
        && selector.unwrap_or_default().iter().all(|one| is_in(&one.scope_name, Some(one), pod))
}

fn is_in(scope: &str, selector: Option<&ScopedResourceSelectorRequirement>, pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let has_deadline =
        || spec.and_then(|spec| spec.active_deadline_seconds).is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => has_deadline(),
        "NotTerminating" => !has_deadline(),
        "BestEffort" => qos(pod) == Qos::BestEffort,
        "NotBestEffort" => qos(pod) != Qos::BestEffort,
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
            let class = class.filter(|name| !name.is_empty());
            match selector {
                Some(one) => meets(&one.operator, one.values.as_deref().unwrap_or_default(), class),
                None => class.is_some(),
            }
        }
        "CrossNamespacePodAffinity" => has_cross_namespace_affinity(pod),
        _ => false,
    }
}

fn has_cross_namespace_affinity(pod: &Pod) -> bool {
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return false };
    let crosses = |term: &PodAffinityTerm| {
        term.namespaces.iter().flatten().next().is_some() || term.namespace_selector.is_some()
    };
    let mut terms: Vec<&PodAffinityTerm> = Vec::new();
    if let Some(affinity) = &affinity.pod_affinity {
        terms.extend(affinity.required_during_scheduling_ignored_during_execution.iter().flatten());
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        terms.extend(preferred.map(|term| &term.pod_affinity_term));
    }
    if let Some(affinity) = &affinity.pod_anti_affinity {
        terms.extend(affinity.required_during_scheduling_ignored_during_execution.iter().flatten());
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        terms.extend(preferred.map(|term| &term.pod_affinity_term));
    }
    terms.into_iter().any(crosses)
}
