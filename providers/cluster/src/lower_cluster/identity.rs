//! What the lower cluster is called, and of which version it is.

use k8s_openapi::api::core::v1::Namespace;
use parking_lot::Mutex;
use serde::Deserialize;
use vk_kube::{Client, Error, Kind, Objects};

use crate::names;

/// What is known of it. Asked for until it is known, and the version again now and then: clusters are upgraded.
#[derive(Debug)]
pub(crate) struct Identity {
    known: Mutex<ClusterInfo>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterInfo {
    /// What it is called; empty as long as that is not known.
    pub(crate) cluster: String,
    /// The UID of its namespace `kube-system`, where that may be read.
    pub(crate) id: Option<String>,
    /// As the API server says it, such as `v1.36.4`; empty as long as that is not known.
    pub(crate) version: String,
    /// How often it was asked for.
    asked: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionAnswer {
    git_version: String,
}

/// Every so many questions the version is asked for again.
const AGAIN: u32 = 30;

// === impl Identity ===

impl Identity {
    pub(super) fn new(cluster: Option<String>) -> Self {
        Self {
            known: Mutex::new(ClusterInfo { cluster: cluster.unwrap_or_default(), ..ClusterInfo::default() }),
        }
    }

    pub(crate) fn info(&self) -> ClusterInfo {
        self.known.lock().clone()
    }

    /// Asks for what is not known. Whether anything is known now that was not.
    pub(crate) async fn refresh(&self, client: &Client) -> Result<bool, Error> {
        let before = {
            let mut known = self.known.lock();
            known.asked = known.asked.wrapping_add(1);
            known.clone()
        };
        let mut now = before.clone();
        if before.version.is_empty() || before.asked % AGAIN == 0 {
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
                // ClusterInfo by its address to those who may not read namespaces.
                Err(error) if error.kind == Kind::Forbidden && now.cluster.is_empty() => {
                    names::sha256_hex(client.server().as_bytes())[..32].clone_into(&mut now.cluster);
                }
                Err(error) if error.kind == Kind::Forbidden => {}
                Err(error) => return Err(error),
            }
        }
        let news = now.version != before.version || now.cluster != before.cluster;
        *self.known.lock() = now;
        Ok(news)
    }
}

/// The id of a cluster: the UID of a namespace that is as old as it, and that nobody can delete.
pub(crate) async fn cluster_id(client: &Client) -> Result<String, Error> {
    let namespaces: Objects<Namespace> = Objects::cluster(client.clone());
    let system = namespaces.get("kube-system").await?;
    system.metadata.uid.ok_or_else(|| Error::new(Kind::Server, "namespace kube-system has no UID"))
}
