//! The description of the virtual node in the upper cluster.

use serde_json::json;
use vk_provider::{
    NodeTemplate,
    node::{Condition, ConditionStatus},
};

use super::{ARCH, ARCH_OLD, OS, OS_OLD, VirtualResources};
use crate::{names, status::truncate};

/// Condition of the virtual node: whether any lower node can take pods. If not, the node stays Ready, because its existing pods keep
/// running.
pub const NODES_AVAILABLE: &str = "multicluster.virtual-kubelet.io/NodesAvailable";
/// The label that names the provider of a virtual node.
pub(super) const PROVIDER: &str = "virtual-kubelet.io/provider";
/// The reason of the condition and of the event if no lower node counts.
pub(crate) const NO_ELIGIBLE_NODES: &str = "NoEligibleNodes";
/// The maximum length of a version string.
const MAX_VERSION_LENGTH: usize = 128;

/// Describes the virtual node of a lower cluster with this version of the API server, except for the condition [`names::REACHABLE`].
pub fn describe(sum: &VirtualResources, cluster: &str, version: &str, template: &mut NodeTemplate) {
    labels(sum, cluster, template);
    if !sum.unseen {
        template.annotations.insert(names::NODES.to_owned(), sum.nodes.to_string());
    }
    let largest = |name: &str| sum.largest_free.get(name).map_or_else(|| "0".to_owned(), ToString::to_string);
    let largest = json!({"cpu": largest("cpu"), "memory": largest("memory")});
    template.annotations.insert(names::LARGEST_FREE.to_owned(), largest.to_string());
    template.capacity.clone_from(&sum.capacity);
    template.allocatable.clone_from(&sum.allocatable);
    if let Some(system) = &sum.operating_system {
        template.system.operating_system.clone_from(system);
    }
    if let Some(architecture) = &sum.architecture {
        template.system.architecture.clone_from(architecture);
    }
    template.kubelet_version =
        Some(truncate(version, MAX_VERSION_LENGTH)).filter(|version| !version.is_empty());
    template.set_condition(available(sum, cluster));
    // Set explicitly, because cloud controllers taint nodes without this condition (Admiralty 74).
    template.set_condition(Condition {
        kind: "NetworkUnavailable".to_owned(),
        status: ConditionStatus::False,
        reason: "LowerClusterNetwork".to_owned(),
        message: "pods use the network of the lower cluster".to_owned(),
    });
}

fn labels(sum: &VirtualResources, cluster: &str, template: &mut NodeTemplate) {
    let labels = &mut template.labels;
    // The template has the labels of the machine of this process, where no pod of this node runs. The operating system may be configured,
    // so it stays until a lower node reports another one.
    for (key, known) in [(ARCH, true), (ARCH_OLD, true), (OS, sum.nodes > 0), (OS_OLD, sum.nodes > 0)] {
        if known {
            labels.remove(key);
        }
    }
    for (key, value) in &sum.labels {
        labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in [(names::CLUSTER_ID, cluster), (names::CLUSTER, cluster), (PROVIDER, "cluster")] {
        labels.insert(key.to_owned(), value.to_owned());
    }
}

fn available(sum: &VirtualResources, cluster: &str) -> Condition {
    // The name is unknown until the cluster answers.
    let cluster = if cluster.is_empty() { "(unknown)" } else { cluster };
    let (status, reason, message) = if let Some(why) = sum.why_no_nodes() {
        (ConditionStatus::False, NO_ELIGIBLE_NODES, format!("cluster {cluster}: {why}"))
    } else if sum.offers_nothing() {
        (ConditionStatus::False, "NothingFree", format!("other pods use all nodes of cluster {cluster}"))
    } else {
        let exclusions = sum.exclusions().map(|text| format!("; left out: {text}")).unwrap_or_default();
        (ConditionStatus::True, "NodesAvailable", format!("cluster {cluster} has nodes for pods{exclusions}"))
    };
    Condition { kind: NODES_AVAILABLE.to_owned(), status, reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests;
