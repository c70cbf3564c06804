//! Name, id and version of the lower cluster.

use parking_lot::Mutex;
use serde::Deserialize;
use vk_kube::{Client, Error, Kind, cluster_id::cluster_id};

use crate::names;

/// The identity of the lower cluster. It is requested until it is known. The version is refreshed periodically, because clusters are
/// upgraded.
#[derive(Debug)]
pub(crate) struct ClusterIdentity {
    known: Mutex<ClusterInfo>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterInfo {
    /// The name; empty until it is known.
    pub(crate) cluster: String,
    /// The UID of the namespace `kube-system`, if it can be read.
    pub(crate) id: Option<String>,
    /// The version of the API server, such as `v1.36.4`; empty until it is known.
    pub(crate) version: String,
    /// Number of refreshes.
    refreshes: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionAnswer {
    git_version: String,
}

/// The version is requested again with every so many refreshes.
const VERSION_REFRESH_INTERVAL: u32 = 30;

// === impl ClusterIdentity ===

impl ClusterIdentity {
    pub(super) fn new(cluster: Option<String>) -> Self {
        Self {
            known: Mutex::new(ClusterInfo { cluster: cluster.unwrap_or_default(), ..ClusterInfo::default() }),
        }
    }

    pub(crate) fn info(&self) -> ClusterInfo {
        self.known.lock().clone()
    }

    /// Requests what is unknown. Returns whether anything changed.
    pub(crate) async fn refresh(&self, client: &Client) -> Result<bool, Error> {
        let before = {
            let mut known = self.known.lock();
            known.refreshes = known.refreshes.wrapping_add(1);
            known.clone()
        };
        let mut now = before.clone();
        if before.version.is_empty() || before.refreshes % VERSION_REFRESH_INTERVAL == 0 {
            now.version = client.read::<VersionAnswer>("version", "/version").await?.git_version;
        }
        if before.id.is_none() {
            match cluster_id(client).await {
                Ok(id) => {
                    if now.cluster.is_empty() {
                        now.cluster.clone_from(&id);
                    }
                    now.id = Some(id);
                }
                // Without the permission to read namespaces, the cluster is identified by its address.
                Err(error) if error.kind == Kind::Forbidden && now.cluster.is_empty() => {
                    names::sha256_hex(client.server().as_bytes())[..32].clone_into(&mut now.cluster);
                }
                Err(error) if error.kind == Kind::Forbidden => {}
                Err(error) => return Err(error),
            }
        }
        let changed = now.version != before.version || now.cluster != before.cluster;
        *self.known.lock() = now;
        Ok(changed)
    }
}
