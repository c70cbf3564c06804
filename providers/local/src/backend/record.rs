//! The records on disk: one file per sandbox and container, written once when it is complete.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vk_pod_engine::backend::{ContainerConfig, SandboxConfig};

use crate::{shim::ShimLaunch, spec::user::ProcessIdentity};

/// File name of a record.
pub(super) const RECORD: &str = "record.json";
/// File name of the record of an incomplete sandbox.
pub(super) const DRAFT: &str = "draft.json";
/// Marker file of a stopped sandbox.
pub(super) const STOPPED: &str = "stopped";

/// The record of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxRecord {
    pub(super) id: String,
    pub(super) config: SandboxConfig,
    pub(super) created: Timestamp,
    /// The boot id of the host when it was created.
    pub(super) boot: String,
    pub(super) ips: Vec<IpAddr>,
    /// File names of the namespaces that are mounted for it.
    pub(super) pins: Vec<String>,
    /// Whether a pause process holds its PID namespace.
    pub(super) pause: bool,
    pub(super) cgroup: Option<String>,
}

/// The record of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContainerRecord {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) created: Timestamp,
    pub(super) boot: String,
    /// Command, arguments and environment are left out, because they may contain Secrets.
    pub(super) config: ContainerConfig,
    /// The image's name, as a runtime reports it.
    pub(super) image: String,
    /// The image's name with its digest.
    pub(super) image_ref: String,
    pub(super) image_id: String,
    /// All names of the images that the container uses.
    pub(super) images: Vec<String>,
    pub(super) identity: Option<ProcessIdentity>,
    pub(super) stop_signal: i32,
    pub(super) launch: ShimLaunch,
}

/// A new random id: 64 hex digits, as containerd uses.
pub(super) fn new_id() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().fold(String::with_capacity(64), |mut id, byte| {
        // Writing to a `String` cannot fail.
        let _ = std::fmt::Write::write_fmt(&mut id, format_args!("{byte:02x}"));
        id
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_64_hex_digits_and_unique() {
        let (one, other) = (new_id(), new_id());
        assert_eq!(one.len(), 64);
        assert!(one.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }
}
