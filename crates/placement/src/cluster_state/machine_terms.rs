//! Anti-affinity by machine, which concerns lower nodes: kube-scheduler ignores it in the upper cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm};

use crate::names;

/// The pod as kube-scheduler sees it.
pub(super) fn without_machine_terms(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = Arc::clone(pod);
    if terms(&pod).iter().any(is_by_machine) {
        remove_machine_terms(Arc::make_mut(&mut pod));
    }
    pod
}

/// Removes the terms that kube-scheduler ignores.
pub(super) fn remove_machine_terms(pod: &mut Pod) {
    let affinity = pod.spec.as_mut().and_then(|spec| spec.affinity.as_mut()?.pod_anti_affinity.as_mut());
    if let Some(terms) =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_mut())
    {
        terms.retain(|term| !is_by_machine(term));
    }
}

fn terms(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.pod_anti_affinity.as_ref());
    let terms =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_deref());
    terms.unwrap_or_default()
}

fn is_by_machine(term: &PodAffinityTerm) -> bool {
    term.topology_key == names::MACHINE
}
