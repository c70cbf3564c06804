//! The node's labels and conditions about isolation and network.

use vk_provider::{
    NodeTemplate,
    node::{Condition, ConditionStatus},
};

use crate::isolation::Isolation;

/// The label with the isolation level, for node selectors.
pub(super) const ISOLATION: &str = "virtual-kubelet.io/isolation";
/// The condition that reports whether pods are isolated.
pub(super) const ISOLATED: &str = "virtual-kubelet.io/Isolated";
/// The condition that reports whether pods have a network of their own.
pub(super) const NETWORKED: &str = "virtual-kubelet.io/PodNetwork";

/// What the node reports about isolation and network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeConditions {
    isolation: Isolation,
    /// Whether there is a pod network.
    bridged: bool,
    /// Why not, or what it cannot do.
    problem: Option<String>,
}

// === impl NodeConditions ===

impl NodeConditions {
    pub(super) fn new(isolation: Isolation, bridged: bool, problem: Option<String>) -> Self {
        Self { isolation, bridged, problem }
    }

    /// Logs the isolation and the network of pods.
    pub(super) fn log(&self) {
        tracing::info!(level = %self.isolation, "pods run on this host");
        match (&self.problem, self.bridged) {
            (Some(why), false) => {
                tracing::warn!(why, "pods use the host's network: two pods cannot use the same port");
            }
            (Some(why), true) => tracing::warn!(why, "the pod network is limited"),
            (None, _) => {}
        }
    }

    /// Sets the label and the conditions of the node.
    pub(super) fn apply(&self, node: &mut NodeTemplate) {
        node.labels.insert(ISOLATION.to_owned(), self.isolation.to_string());
        node.set_condition(self.isolated());
        node.set_condition(self.networked());
    }

    fn isolated(&self) -> Condition {
        let (status, reason, message) = match self.isolation {
            Isolation::Oci => {
                (ConditionStatus::True, "Containers", "pods have their own files, processes and limits")
            }
            Isolation::Process => (
                ConditionStatus::False,
                "PlainProcesses",
                "PODS ARE PLAIN PROCESSES OF THIS HOST: they are not isolated from its files, its network and each other; \
                 run only trusted pods (virtual-kubelet doctor lists what containers need)",
            ),
        };
        Condition {
            kind: ISOLATED.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn networked(&self) -> Condition {
        let (status, reason, message) = match (self.bridged, &self.problem) {
            (true, None) => (ConditionStatus::True, "Bridge", "each pod has its own address".to_owned()),
            (true, Some(why)) => {
                (ConditionStatus::True, "Limited", format!("each pod has its own address; {why}"))
            }
            (false, None) => (
                ConditionStatus::False,
                "HostNetwork",
                "pods use the host's network, as configured: two pods cannot use the same port".to_owned(),
            ),
            (false, Some(why)) => (
                ConditionStatus::False,
                "HostNetwork",
                format!("pods use the host's network, and two pods cannot use the same port: {why}"),
            ),
        };
        Condition { kind: NETWORKED.to_owned(), status, reason: reason.to_owned(), message }
    }
}
