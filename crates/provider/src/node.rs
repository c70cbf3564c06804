//! The description of a virtual node by its provider.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeAddress, Taint};

use crate::{pod::EventKind, quantity::Quantity};

/// The desired state of a Node object. The core fills in the defaults and the user's settings, passes it to
/// [`Provider::configure_node`](crate::Provider::configure_node), and reconciles the Node object with the result.
///
/// Labels, annotations, taints and conditions that are not in here belong to others and are kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTemplate {
    /// Labels. A label that is no longer in here is removed from the Node.
    pub labels: BTreeMap<String, String>,
    /// Annotations, by the same rule.
    pub annotations: BTreeMap<String, String>,
    /// Taints, identified by key and effect, by the same rule.
    pub taints: Vec<Taint>,
    /// Total resources of the node, by name (`cpu`, `memory`, `pods`, ...).
    pub capacity: BTreeMap<String, Quantity>,
    /// Resources that pods may use. Defaults to the capacity for each resource that is not listed.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Addresses, preferred first. Two of one type are allowed (dual stack).
    pub addresses: Vec<NodeAddress>,
    /// Conditions other than Ready. The core sets Ready from [`Provider::ping`](crate::Provider::ping).
    pub conditions: Vec<Condition>,
    /// The system that runs the pods.
    pub system: System,
    /// The kubelet version of the node, such as `v1.36.4`, if another kubelet runs the pods; `None` for the version of this
    /// process.
    pub kubelet_version: Option<String>,
    /// `spec.providerID`. Kubernetes allows it to be set once, so it is written only if it is empty.
    pub provider_id: Option<String>,
    /// Kubernetes features that the node declares, such as `ExtendWebSocketsToKubelet`.
    pub declared_features: BTreeSet<String>,
}

/// The fields of `status.nodeInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// `linux` or `windows`.
    pub operating_system: String,
    /// The architecture as Go names it: `amd64`, `arm64`, ...
    pub architecture: String,
    /// The container runtime, as `name://version`.
    pub container_runtime_version: String,
    /// Version of the kernel, if known.
    pub kernel_version: String,
    /// Name of the distribution.
    pub os_image: String,
    /// `/etc/machine-id` of the host, if the node is a single host.
    pub machine_id: String,
    /// UUID of the host, if the node is a single host.
    pub system_uuid: String,
    /// Boot id of the host, if the node is a single host.
    pub boot_id: String,
}

/// A condition of the node. The core maintains `lastTransitionTime` and `lastHeartbeatTime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type, such as `MemoryPressure`.
    pub kind: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// A short machine-readable CamelCase reason.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

/// One item of [`Provider::node_changes`](crate::Provider::node_changes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// [`Provider::configure_node`](crate::Provider::configure_node) or [`Provider::ping`](crate::Provider::ping) would
    /// give another result: call both again. Several in a row count as one.
    Refresh,
    /// Becomes an event on the node.
    Event {
        /// Normal or Warning.
        kind: EventKind,
        /// A short machine-readable CamelCase reason.
        reason: String,
        /// A human-readable message.
        message: String,
    },
}

// === impl NodeTemplate ===

impl NodeTemplate {
    /// The allocatable resources, with the capacity of each resource that has no other value.
    pub fn allocatable_or_capacity(&self) -> BTreeMap<String, Quantity> {
        let mut all = self.capacity.clone();
        all.extend(self.allocatable.iter().map(|(name, quantity)| (name.clone(), *quantity)));
        all
    }

    /// Sets a condition, replacing one of the same type.
    pub fn set_condition(&mut self, condition: Condition) {
        match self.conditions.iter_mut().find(|present| present.kind == condition.kind) {
            Some(present) => *present = condition,
            None => self.conditions.push(condition),
        }
    }
}

// === impl ConditionStatus ===

impl ConditionStatus {
    /// The value in the Kubernetes API.
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
