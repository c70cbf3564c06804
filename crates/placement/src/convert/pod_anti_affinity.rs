//! Required pod anti-affinity by host name.

use k8s_openapi::api::core::v1::PodSpec;

use super::changes::{Changes, pointer};
use crate::names;

/// The path of required pod anti-affinity.
const REQUIRED: [&str; 4] =
    ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];

/// Renames the topology key: pods that must run on different machines may run on the same virtual node. The upper scheduler ignores a topology
/// key that no node has.
pub(super) fn convert(spec: &PodSpec, changes: &mut Changes) {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    for (index, term) in required.into_iter().flatten().enumerate() {
        if term.topology_key == names::HOSTNAME {
            let index = index.to_string();
            changes.replace(
                pointer(REQUIRED.into_iter().chain([index.as_str(), "topologyKey"])),
                names::MACHINE,
            );
        }
    }
}
