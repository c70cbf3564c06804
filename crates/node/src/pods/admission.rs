//! Whether the node admits a pod, as a kubelet decides it: pods may be bound without a check, or after a check of an older
//! version of the Node.
//!
//! Checked are the operating system, node affinity and selector, `NoExecute` taints, and the limited resources of the node:
//! cpu, memory, the number of pods and host ports. Reasons and messages are the kubelet's, because people and controllers
//! know them.

mod node_admission;
mod placement;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use vk_provider::{
    Quantity,
    host_port::{HostPort, host_ports},
};

pub(super) use self::node_admission::NodeAdmission;

pub use vk_provider::requests::requests;

/// What is checked before a pod is handed to the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Everything that a kubelet checks.
    Full,
    /// Only operating system, affinity and taints: for backends that add capacity as pods come.
    Placement,
    /// Nothing.
    #[default]
    Off,
}

/// What becomes of a pod that the node does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RejectionPolicy {
    /// It fails, with the reason.
    #[default]
    Fail,
    /// It stays Pending, with the reason, until it is changed or deleted.
    Hold,
}

/// The node's decision about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// It may run.
    Admitted,
    /// It may not.
    Rejected {
        /// The kubelet's reason.
        reason: String,
        /// For people.
        message: String,
        /// What becomes of it.
        refused: RejectionPolicy,
    },
}

/// Why a pod cannot be resized now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeDelay {
    /// The node can never have room for it.
    pub infeasible: bool,
    /// For people.
    pub message: String,
}

/// What the pods of the node have claimed.
#[derive(Debug, Default)]
pub struct ResourceLedger {
    checks: Checks,
    daemon_sets: Option<RejectionPolicy>,
    claims: HashMap<Arc<str>, ResourceClaim>,
    used: BTreeMap<String, Quantity>,
    ports: HashSet<HostPort>,
}

#[derive(Debug, Default)]
struct ResourceClaim {
    requests: BTreeMap<String, Quantity>,
    ports: Vec<HostPort>,
}

/// A resource that is not sufficient.
struct Shortage {
    resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

// === impl AdmissionVerdict ===

impl AdmissionVerdict {
    fn rejected(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Rejected { reason: reason.into(), message: message.into(), refused: RejectionPolicy::Fail }
    }

    /// Whether newer labels of the Node could change it.
    pub fn may_be_outdated(&self) -> bool {
        matches!(self, Self::Rejected { reason, .. } if reason == placement::AFFINITY)
    }
}

// === impl ResourceLedger ===

impl ResourceLedger {
    /// Nothing is claimed yet. `daemon_sets`: what becomes of DaemonSets' pods where they do not run.
    pub fn new(checks: Checks, daemon_sets: Option<RejectionPolicy>) -> Self {
        Self { checks, daemon_sets, ..Self::default() }
    }

    /// Decides about a pod, and books its resources if it is admitted.
    pub fn admit(&mut self, uid: &Arc<str>, pod: &Pod, node: &Node) -> AdmissionVerdict {
        if self.checks != Checks::Off && !self.is_excluded(pod) {
            let verdict = self.judge(uid, pod, node);
            if verdict != AdmissionVerdict::Admitted {
                return verdict;
            }
        }
        self.readmit(uid, pod)
    }

    /// Books the resources of a pod that was admitted before: it is not checked again, whatever the Node says now.
    pub fn readmit(&mut self, uid: &Arc<str>, pod: &Pod) -> AdmissionVerdict {
        if let Some(refused) = self.daemon_sets.filter(|_| self.is_excluded(pod)) {
            let message = "this node does not run pods of DaemonSets";
            return AdmissionVerdict::Rejected {
                reason: "DaemonSetNotSupported".to_owned(),
                message: message.to_owned(),
                refused,
            };
        }
        self.claim(uid, pod);
        AdmissionVerdict::Admitted
    }

    /// Whether the pod is of a DaemonSet, where those do not run.
    fn is_excluded(&self, pod: &Pod) -> bool {
        self.daemon_sets.is_some() && is_of_daemon_set(pod)
    }

    fn judge(&self, uid: &str, pod: &Pod, node: &Node) -> AdmissionVerdict {
        if let Some(verdict) = placement::operating_system(pod, node) {
            return verdict;
        }
        if self.checks == Checks::Full
            && let Some(shortage) = self.shortages(uid, pod, node).into_iter().next()
        {
            return AdmissionVerdict::rejected(format!("OutOf{}", shortage.resource), shortage.message());
        }
        if let Some(verdict) = placement::affinity(pod, node) {
            return verdict;
        }
        let taken = || {
            let own = self.claims.get(uid).map(|claim| claim.ports.as_slice()).unwrap_or_default();
            let others = || self.ports.iter().filter(|port| !own.contains(port));
            host_ports(pod).iter().any(|port| others().any(|other| port.conflicts(other)))
        };
        if self.checks == Checks::Full && taken() {
            let message = "node(s) didn't have free ports for the requested pod ports";
            return placement::predicate("NodePorts", message);
        }
        placement::taints(pod, node).unwrap_or(AdmissionVerdict::Admitted)
    }

    /// Decides about the resize of a pod, and books the new resources if it is admitted.
    pub fn resize(&mut self, uid: &Arc<str>, pod: &Pod, node: &Node) -> Result<(), ResizeDelay> {
        if self.checks == Checks::Full
            && let Some(shortage) = self.shortages(uid, pod, node).into_iter().next()
        {
            let infeasible = shortage.requested > shortage.capacity;
            return Err(ResizeDelay { infeasible, message: shortage.message() });
        }
        self.claim(uid, pod);
        Ok(())
    }

    /// Books the resources of a pod, whether there is room or not: the provider has it.
    pub fn claim(&mut self, uid: &Arc<str>, pod: &Pod) {
        if self.checks != Checks::Full {
            return;
        }
        self.release(uid);
        let claim = ResourceClaim { requests: requests(pod), ports: host_ports(pod) };
        for (name, amount) in &claim.requests {
            let used = self.used.entry(name.clone()).or_insert(Quantity::units(0));
            *used = *used + *amount;
        }
        self.ports.extend(claim.ports.iter().cloned());
        self.claims.insert(Arc::clone(uid), claim);
    }

    /// The pod needs nothing any more. Returns whether it had claimed something.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(claim) = self.claims.remove(uid) else { return false };
        for (name, amount) in &claim.requests {
            if let Some(used) = self.used.get_mut(name) {
                *used = *used - *amount;
            }
        }
        for port in &claim.ports {
            // Pods that were admitted without a check may share a port: it is taken until both are gone.
            if !self.claims.values().any(|other| other.ports.contains(port)) {
                self.ports.remove(port);
            }
        }
        true
    }

    /// The resources that are not sufficient.
    fn shortages(&self, uid: &str, pod: &Pod, node: &Node) -> Vec<Shortage> {
        let status = node.status.as_ref();
        let room = status.and_then(|status| status.allocatable.as_ref());
        let room = room.or_else(|| status.and_then(|status| status.capacity.as_ref()));
        let room = |name: &str| room.and_then(|room| room.get(name)?.0.parse::<Quantity>().ok());
        let own = self.claims.get(uid);
        let mut shortages = Vec::new();
        let others = i64::try_from(self.claims.len() - usize::from(own.is_some())).unwrap_or(i64::MAX);
        let most = room("pods").map_or(0, Quantity::to_units);
        if others >= most {
            let resource = "pods".to_owned();
            shortages.push(Shortage { resource, requested: 1, used: others, capacity: most });
        }
        let mut wanted: Vec<(String, Quantity)> = requests(pod).into_iter().collect();
        // Only the first shortage is reported: in the order in which a kubelet checks.
        wanted.sort_by_key(|(name, _)| {
            let order = ["cpu", "memory", "ephemeral-storage"];
            order.iter().position(|known| known == name).unwrap_or(order.len())
        });
        for (resource, requested) in wanted {
            let capacity = room(&resource);
            // Cluster-wide resources are not in the Node, and are not checked here.
            if capacity.is_none() && resource.contains('/') {
                continue;
            }
            let zero = Quantity::units(0);
            let capacity = capacity.unwrap_or(zero);
            let mine = own.and_then(|claim| claim.requests.get(&resource)).copied().unwrap_or(zero);
            let used = self.used.get(&resource).copied().unwrap_or(zero) - mine;
            if requested > zero && used + requested > capacity {
                let units = |amount: Quantity| match resource.as_str() {
                    "cpu" => amount.to_milli(),
                    _ => amount.to_units(),
                };
                let (requested, used, capacity) = (units(requested), units(used), units(capacity));
                shortages.push(Shortage { resource, requested, used, capacity });
            }
        }
        shortages
    }
}

// === impl Shortage ===

impl Shortage {
    fn message(&self) -> String {
        let Self { resource, requested, used, capacity } = self;
        format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }
}

fn is_of_daemon_set(pod: &Pod) -> bool {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet")
}

#[cfg(test)]
mod tests;
