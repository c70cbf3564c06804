//! What a runtime says about itself and its images.

use serde::{Deserialize, Serialize};

/// A runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// Its name, as in `containerd://2.1.9`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it can run containers.
    pub ready: Condition,
    /// Whether it can give a network to pods.
    pub network: Condition,
    /// The handlers that it has, the default one under the empty name.
    pub handlers: Vec<Handler>,
    /// `cgroupfs` or `systemd`, where it tells.
    pub cgroup_driver: Option<String>,
}

/// Whether something is well, and why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether it is.
    pub ok: bool,
    /// A short reason.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// One way to run containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    /// Its name; empty is the default one.
    pub name: String,
    /// Whether pods can have users of their own.
    pub user_namespaces: bool,
    /// Whether a mount can be read-only with all below it.
    pub recursive_read_only: bool,
}

/// An image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// The runtime's id.
    pub id: String,
    /// Names with tags.
    pub tags: Vec<String>,
    /// Names with digests.
    pub digests: Vec<String>,
    /// Bytes.
    pub size: u64,
    /// The user that it names, by number.
    pub uid: Option<i64>,
    /// The user that it names, by name; empty where it names none.
    pub username: String,
    /// Whether it must not be removed.
    pub pinned: bool,
}
