//! Descriptions of the runtime and of its images.

use serde::{Deserialize, Serialize};

/// Name, version and readiness of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Its name, as in `containerd://2.1.9`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it can run containers.
    pub ready: RuntimeCondition,
    /// Whether pod networking works.
    pub network: RuntimeCondition,
    /// Its handlers; the default handler has the empty name.
    pub handlers: Vec<RuntimeHandler>,
    /// `cgroupfs` or `systemd`, if known.
    pub cgroup_driver: Option<String>,
}

// === impl RuntimeInfo ===

impl RuntimeInfo {
    /// Whether a handler supports recursive read-only mounts.
    pub fn supports_recursive_read_only(&self, handler: &str) -> bool {
        self.handlers.iter().any(|known| known.name == handler && known.recursive_read_only)
    }
}

/// A condition of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// Whether it holds.
    pub ok: bool,
    /// A short reason.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

/// A runtime handler: one way to run containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Its name; empty for the default handler.
    pub name: String,
    /// Whether it supports user namespaces.
    pub user_namespaces: bool,
    /// Whether it supports recursive read-only mounts.
    pub recursive_read_only: bool,
}

/// A local image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// The runtime's id.
    pub id: String,
    /// Names with tags.
    pub tags: Vec<String>,
    /// Names with digests.
    pub digests: Vec<String>,
    /// Size in bytes.
    pub size: u64,
    /// The numeric user of the image.
    pub uid: Option<i64>,
    /// The user name of the image; empty if it has none.
    pub username: String,
    /// Whether it must not be removed.
    pub pinned: bool,
}
