//! Calls of the node controller on its Node object.

use serde_json::Value;

/// A call on the Node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeCall {
    /// Read it.
    Read,
    /// Register it.
    Create(Value),
    /// Take over the fields of the Go original (JSON patch).
    Migrate(Value),
    /// Apply labels and annotations.
    Metadata(Value),
    /// Patch taints and provider ID (merge patch with a resourceVersion precondition).
    Spec(Value),
    /// Apply the status.
    Status(Value),
    /// Patch the addresses (strategic merge patch of the status).
    Addresses(Value),
    /// Delete it.
    Delete {
        /// Its UID.
        uid: String,
    },
}

// === impl NodeCall ===

impl NodeCall {
    /// Description for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read => "read the Node",
            Self::Create(_) => "register the Node",
            Self::Migrate(_) => "take over the Node of the Go virtual kubelet",
            Self::Metadata(_) => "write the Node's labels and annotations",
            Self::Spec(_) => "write the Node's taints",
            Self::Status(_) => "write the Node's status",
            Self::Addresses(_) => "write the Node's addresses",
            Self::Delete { .. } => "delete the Node",
        }
    }
}
