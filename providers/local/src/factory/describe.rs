//! What the node tells about how well its pods are kept apart.

use vk_provider::{
    NodeTemplate,
    node::{Condition, ConditionStatus},
};

use crate::level::Level;

/// The label by which pods can choose, or avoid, a level.
pub(super) const ISOLATION: &str = "virtual-kubelet.io/isolation";
/// The condition that says whether pods are kept apart.
pub(super) const ISOLATED: &str = "virtual-kubelet.io/Isolated";
/// The condition that says whether pods have a network of their own.
pub(super) const NETWORKED: &str = "virtual-kubelet.io/PodNetwork";

/// What there is to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    level: Level,
    /// Whether pods have a network of their own.
    bridged: bool,
    /// Why not, or what it cannot do.
    problem: Option<String>,
}

// === impl Described ===

impl Described {
    pub(super) fn new(level: Level, bridged: bool, problem: Option<String>) -> Self {
        Self { level, bridged, problem }
    }

    /// For those who read the log.
    pub(super) fn log(&self) {
        tracing::info!(level = %self.level, "pods run on this machine");
        match (&self.problem, self.bridged) {
            (Some(why), false) => {
                tracing::warn!(why, "pods have the machine's network: two cannot have one port");
            }
            (Some(why), true) => tracing::warn!(why, "the network of pods is limited"),
            (None, _) => {}
        }
    }

    /// For those who look at the node.
    pub(super) fn describe(&self, node: &mut NodeTemplate) {
        node.labels.insert(ISOLATION.to_owned(), self.level.to_string());
        node.set_condition(self.isolated());
        node.set_condition(self.networked());
    }

    fn isolated(&self) -> Condition {
        let (status, reason, message) = match self.level {
            Level::Oci => {
                (ConditionStatus::True, "Containers", "pods have files, processes and limits of their own")
            }
            Level::Process => (
                ConditionStatus::False,
                "PlainProcesses",
                "PODS ARE PLAIN PROCESSES OF THIS MACHINE: nothing keeps them from its files, its network and each other; \
                 run only what you would run yourself (virtual-kubelet doctor says what containers need)",
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
            (true, None) => {
                (ConditionStatus::True, "Bridge", "each pod has an address of its own".to_owned())
            }
            (true, Some(why)) => {
                (ConditionStatus::True, "Limited", format!("each pod has an address of its own; {why}"))
            }
            (false, None) => (
                ConditionStatus::False,
                "HostNetwork",
                "pods have the machine's network, as configured: two cannot have one port".to_owned(),
            ),
            (false, Some(why)) => (
                ConditionStatus::False,
                "HostNetwork",
                format!("pods have the machine's network, and two cannot have one port: {why}"),
            ),
        };
        Condition { kind: NETWORKED.to_owned(), status, reason: reason.to_owned(), message }
    }
}
