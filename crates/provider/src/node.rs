//! The virtual node as a provider describes it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeAddress, Taint};

use crate::{pod::EventKind, quantity::Quantity};

/// What the node shall look like. The core fills in the defaults and the user's settings, hands it to
/// [`Provider::configure_node`](crate::Provider::configure_node), and brings the Node object there and keeps it there.
///
/// Only what stands here is ours: labels, annotations, taints and conditions that others put on the Node stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTemplate {
    /// Labels of ours. A label that was here earlier and is no more is taken off the Node.
    pub labels: BTreeMap<String, String>,
    /// Annotations of ours, under the same rule.
    pub annotations: BTreeMap<String, String>,
    /// Taints of ours, told apart by key and effect, under the same rule.
    pub taints: Vec<Taint>,
    /// What the node has in all, by resource name (`cpu`, `memory`, `pods`, ...).
    pub capacity: BTreeMap<String, Quantity>,
    /// What pods may use of it; the capacity where a resource is not named here.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Addresses, most preferred first. Two of one type are allowed (dual stack).
    pub addresses: Vec<NodeAddress>,
    /// Conditions beside Ready, by type. Ready is the core's, from [`Provider::ping`](crate::Provider::ping).
    pub conditions: Vec<Condition>,
    /// Facts about the system that runs the pods.
    pub system: System,
    /// The version of Kubernetes that the node claims, such as `v1.36.4`, where pods are run by a kubelet that is not this process; `None`
    /// is our own.
    pub kubelet_version: Option<String>,
    /// `spec.providerID`. Kubernetes lets it be set once, so it is written only where it is still empty.
    pub provider_id: Option<String>,
    /// Kubernetes features that the node claims, such as `ExtendWebSocketsToKubelet`. Claim only what holds.
    pub declared_features: BTreeSet<String>,
}

/// The facts of `status.nodeInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// `linux` or `windows`.
    pub operating_system: String,
    /// In Go's spelling: `amd64`, `arm64`, ...
    pub architecture: String,
    /// What runs the containers, as `name://version`.
    pub container_runtime_version: String,
    /// Version of the kernel, if there is one to tell of.
    pub kernel_version: String,
    /// Name of the operating system's distribution.
    pub os_image: String,
    /// `/etc/machine-id` of the machine, if there is one machine.
    pub machine_id: String,
    /// UUID of the machine, if there is one machine.
    pub system_uuid: String,
    /// Boot id of the machine, if there is one machine.
    pub boot_id: String,
}

/// A condition of the node. The core keeps `lastTransitionTime` and `lastHeartbeatTime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type, such as `MemoryPressure`.
    pub kind: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// A short CamelCase reason.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// The three values that a condition's status may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// Nobody knows.
    Unknown,
}

/// One item of [`Provider::node_changes`](crate::Provider::node_changes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// [`Provider::configure_node`](crate::Provider::configure_node) or [`Provider::ping`](crate::Provider::ping) would
    /// now answer differently: ask both. Many in a row count as one.
    Refresh,
    /// Something worth telling happened: it becomes an event on the node.
    Event {
        /// Normal or Warning.
        kind: EventKind,
        /// A short CamelCase reason for programs.
        reason: String,
        /// A sentence for people.
        message: String,
    },
}

// === impl NodeTemplate ===

impl NodeTemplate {
    /// What pods may use of a resource: allocatable, or the capacity where nothing less is said.
    pub fn allocatable_or_capacity(&self) -> BTreeMap<String, Quantity> {
        let mut all = self.capacity.clone();
        all.extend(self.allocatable.iter().map(|(name, quantity)| (name.clone(), *quantity)));
        all
    }

    /// Sets a condition, in place of an earlier one of the same type.
    pub fn set_condition(&mut self, condition: Condition) {
        match self.conditions.iter_mut().find(|known| known.kind == condition.kind) {
            Some(known) => *known = condition,
            None => self.conditions.push(condition),
        }
    }
}

// === impl ConditionStatus ===

impl ConditionStatus {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}
