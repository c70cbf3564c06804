//! The virtual node as the upper cluster sees it.

use serde_json::json;
use vk_provider::{
    NodeTemplate,
    node::{Condition, ConditionStatus},
};

use super::{ARCH, ARCH_OLD, OS, OS_OLD, VirtualResources};
use crate::{names, status::truncate};

/// Condition of the virtual node: whether pods can be put on any of its lower nodes. It stays Ready when they cannot: the pods that it
/// has run on.
pub const NODES_AVAILABLE: &str = "multicluster.virtual-kubelet.io/NodesAvailable";
/// Which provider a virtual node is of.
const PROVIDER: &str = "virtual-kubelet.io/provider";
/// The most letters of a version that is believed.
const LONGEST_VERSION: usize = 128;

/// Describes the virtual node of a lower cluster, whose API server has this version. All but whether that answers
/// ([`names::REACHABLE`]).
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
    template.kubelet_version = Some(truncate(version, LONGEST_VERSION)).filter(|version| !version.is_empty());
    template.set_condition(available(sum, cluster));
    // Said, because controllers of clouds taint nodes of which nobody says it (Admiralty 74).
    template.set_condition(Condition {
        kind: "NetworkUnavailable".to_owned(),
        status: ConditionStatus::False,
        reason: "LowerClusterNetwork".to_owned(),
        message: "pods have the network of the lower cluster".to_owned(),
    });
}

fn labels(sum: &VirtualResources, cluster: &str, template: &mut NodeTemplate) {
    let labels = &mut template.labels;
    // The template has those of this process's machine, on which no pod of this node will ever run. What system it is may be
    // configured, so that stands as long as no node says otherwise.
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
    // It is not known before it has answered once.
    let cluster = if cluster.is_empty() { "(unknown)" } else { cluster };
    let (status, reason, message) = if sum.nodes == 0 && !sum.unseen {
        let message = format!(
            "no node of cluster {cluster} is selected, ready, schedulable and free of taints that pods do not tolerate"
        );
        (ConditionStatus::False, "NoEligibleNodes", message)
    } else if sum.offers_nothing() {
        (ConditionStatus::False, "NothingFree", format!("pods of others take all nodes of cluster {cluster}"))
    } else {
        (ConditionStatus::True, "NodesAvailable", format!("cluster {cluster} has nodes for pods"))
    };
    Condition { kind: NODES_AVAILABLE.to_owned(), status, reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests;
