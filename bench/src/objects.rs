//! Objects that a benchmark creates in a cluster by itself.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{Api, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Concurrent requests of the client.
pub(crate) const CONCURRENCY: usize = 64;

/// Creates objects concurrently.
pub(crate) async fn create_all<K>(
    api: &Api<K>,
    objects: impl IntoIterator<Item = Value>,
) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let created = objects.into_iter().map(|object| async move {
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        anyhow::Ok(())
    });
    stream::iter(created).buffer_unordered(CONCURRENCY).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// A pod with small requests.
pub(crate) fn pod(name: &str, node: Option<&str>) -> Value {
    let requests = json!({"requests": {"cpu": "10m", "memory": "16Mi"}});
    json!({"metadata": {"name": name, "labels": {"app": "bench"}}, "spec": {
        "nodeName": node, "automountServiceAccountToken": false, "enableServiceLinks": false,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "bench", "resources": requests}],
    }})
}

/// A node that is Ready and that no kubelet runs.
pub(crate) fn node(name: &str) -> Value {
    let amounts = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    let condition = json!({"type": "Ready", "status": "True", "reason": "Bench", "message": "bench",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}})
}
