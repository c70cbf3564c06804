//! The calls that the node controller makes on its Node.

use serde_json::Value;

/// A call on the Node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeCall {
    /// Read it.
    Read,
    /// Register it.
    Create(Value),
    /// Take over the Go original's fields: a JSON patch.
    Adopt(Value),
    /// Apply labels and annotations.
    Metadata(Value),
    /// Patch taints and provider id: a merge patch under the resourceVersion.
    Spec(Value),
    /// Apply the status.
    Status(Value),
    /// Patch the addresses: a strategic patch of the status.
    Addresses(Value),
    /// Delete it.
    Delete {
        /// Its UID.
        uid: String,
    },
}

// === impl NodeCall ===

impl NodeCall {
    /// For messages and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read => "read the Node",
            Self::Create(_) => "register the Node",
            Self::Adopt(_) => "adopt the Node",
            Self::Metadata(_) => "write the Node's labels and annotations",
            Self::Spec(_) => "write the Node's taints",
            Self::Status(_) => "write the Node's status",
            Self::Addresses(_) => "write the Node's addresses",
            Self::Delete { .. } => "delete the Node",
        }
    }
}
