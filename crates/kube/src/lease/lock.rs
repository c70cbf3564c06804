//! Which lease a process competes for, who holds it, and how messages name it.

use std::fmt;

use k8s_openapi::api::coordination::v1::Lease;
use tracing::{
    debug,
    field::{DisplayValue, display},
    info, warn,
};

use crate::{Error, Instance, Kind};

/// Annotation with the process that holds the lease of a node.
pub const INSTANCE_ANNOTATION: &str = "virtual-kubelet.io/instance";

/// The lease object that processes compete for, like client-go's `resourcelock.LeaseLock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseLock {
    /// The lease of the node with this name, in `kube-node-lease`. Its `holderIdentity` is the node, as Kubernetes expects of a
    /// heartbeat, so an annotation names the process.
    Node(String),
    /// The lease of another component. Its `holderIdentity` is the process.
    Component {
        /// Namespace of the lease.
        namespace: String,
        /// Name of the lease.
        name: String,
    },
}

/// Why this process must not do what the lease guards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseConflict {
    /// Another process holds the lease.
    #[error("{}", .lock.in_use(.holder))]
    InUse {
        /// The lease.
        lock: LeaseLock,
        /// The holder.
        holder: String,
    },
    /// Another process took over because this one did not renew the lease.
    #[error("{}", .lock.lost(.holder))]
    Lost {
        /// The lease.
        lock: LeaseLock,
        /// The new holder.
        holder: String,
    },
    /// The lease was not renewed in time, so another process may have it.
    #[error("{}", .lock.expired())]
    Expired {
        /// The lease.
        lock: LeaseLock,
    },
}

// === impl LeaseLock ===

impl LeaseLock {
    /// Namespace of the lease.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Node(_) => "kube-node-lease",
            Self::Component { namespace, .. } => namespace,
        }
    }

    /// Name of the lease.
    pub fn name(&self) -> &str {
        match self {
            Self::Node(name) | Self::Component { name, .. } => name,
        }
    }

    /// The `holderIdentity` of a lease that this process holds.
    pub(super) fn holder_identity(&self, instance: &Instance) -> String {
        match self {
            Self::Node(node) => node.clone(),
            Self::Component { .. } => instance.to_string(),
        }
    }

    /// The process that holds the lease, if it is known.
    pub(super) fn holder(&self, lease: &Lease) -> Option<Instance> {
        let text = match self {
            Self::Node(_) => lease.metadata.annotations.as_ref()?.get(INSTANCE_ANNOTATION)?,
            Self::Component { .. } => lease.spec.as_ref()?.holder_identity.as_ref()?,
        };
        text.parse().ok()
    }

    fn in_use(&self, holder: &str) -> String {
        match self {
            Self::Node(node) => format!(
                "node {node} is already run by {holder}, which is renewing its lease; stop that process, or choose \
                 another name with --nodename"
            ),
            Self::Component { .. } => {
                format!("{self} is already held by {holder}, which is renewing it; stop that process")
            }
        }
    }

    fn lost(&self, holder: &str) -> String {
        match self {
            Self::Node(node) => {
                format!("node {node} was taken over by {holder} while this process could not renew its lease")
            }
            Self::Component { .. } => {
                format!("{self} was taken over by {holder} while this process could not renew it")
            }
        }
    }

    fn expired(&self) -> String {
        match self {
            Self::Node(node) => format!(
                "the lease of node {node} could not be renewed in time; another process may run the node now"
            ),
            Self::Component { .. } => {
                format!("{self} could not be renewed in time; another process may hold it now")
            }
        }
    }

    /// The field `node` of log lines.
    fn node(&self) -> Option<DisplayValue<&str>> {
        match self {
            Self::Node(node) => Some(display(node)),
            Self::Component { .. } => None,
        }
    }

    pub(super) fn log_other_holder(&self, holder: &str) {
        warn!(
            node = self.node(), %holder,
            "another process holds {self}; waiting to see whether it is alive"
        );
    }

    pub(super) fn log_standby(&self, leader: &str) {
        match self {
            Self::Node(node) => info!(%node, %leader, "another replica is the leader; standing by"),
            Self::Component { .. } => info!(%leader, "another replica holds {self}; standing by"),
        }
    }

    pub(super) fn log_takeover(&self, holder: &str) {
        info!(node = self.node(), %holder, "the leader did not renew {self}; taking over");
    }

    /// Logs a failed call. Conflicts and a missing lease are normal; any other error is a warning the first time.
    pub(super) fn log_failed_call(&self, error: &Error, first: bool) {
        let usual = matches!(error.kind, Kind::NotFound | Kind::Conflict | Kind::AlreadyExists);
        if !usual && first {
            warn!(kind = %error.kind, %error, "call on {self} failed; retrying");
        } else {
            debug!(kind = %error.kind, %error, "call on {self} failed");
        }
    }
}

/// As in log lines, where the name of a node is a field.
impl fmt::Display for LeaseLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(_) => f.write_str("the node's lease"),
            Self::Component { namespace, name } => write!(f, "lease {namespace}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflicts(lock: &LeaseLock) -> [String; 3] {
        let (lock, holder) = (lock.clone(), "process 7 on host a".to_owned());
        [
            LeaseConflict::InUse { lock: lock.clone(), holder: holder.clone() },
            LeaseConflict::Lost { lock: lock.clone(), holder },
            LeaseConflict::Expired { lock },
        ]
        .map(|conflict| conflict.to_string())
    }

    #[test]
    fn conflicts_name_the_node_or_the_lease() {
        assert_eq!(
            conflicts(&LeaseLock::Node("n".into())),
            [
                "node n is already run by process 7 on host a, which is renewing its lease; stop that process, or \
                 choose another name with --nodename",
                "node n was taken over by process 7 on host a while this process could not renew its lease",
                "the lease of node n could not be renewed in time; another process may run the node now",
            ]
        );
        let lock = LeaseLock::Component { namespace: "kube-system".into(), name: "c".into() };
        assert_eq!(
            conflicts(&lock),
            [
                "lease kube-system/c is already held by process 7 on host a, which is renewing it; stop that process",
                "lease kube-system/c was taken over by process 7 on host a while this process could not renew it",
                "lease kube-system/c could not be renewed in time; another process may hold it now",
            ]
        );
    }
}
