//! A client that makes the writes of nodes and nothing else.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{Client, Metrics, Objects, Patch};
use vk_supervisor::Clock;

/// A quarter of the lease duration of 40 s, as in a kubelet.
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct BareNodes {
    #[arg(long)]
    count: usize,
    #[arg(long)]
    kubeconfig: PathBuf,
}

impl BareNodes {
    /// Writes all nodes, then renews their leases until the process is killed.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::fixed(kube::Client::try_from(config)?, Metrics::default());
        let written: Vec<(String, Instant)> = stream::iter(0..self.count)
            .map(|index| write_node(client.clone(), format!("bare-{index}")))
            .buffer_unordered(self.count)
            .try_collect()
            .await?;
        let leases: Objects<Lease> = Objects::namespaced(client, "kube-node-lease");
        // Each lease is renewed at its own interval from its first write on.
        stream::iter(written)
            .map(|(name, start)| renew(&leases, name, start))
            .buffer_unordered(self.count)
            .try_collect()
            .await
    }
}

async fn renew(leases: &Objects<Lease>, name: String, start: Instant) -> anyhow::Result<()> {
    let mut due = start;
    loop {
        due += PERIOD;
        tokio::time::sleep_until(due).await;
        leases.patch(&name, Patch::Merge(&json!({"spec": {"renewTime": now()}}))).await?;
    }
}

fn now() -> String {
    format!("{:.6}", Clock::system().now())
}

async fn write_node(client: Client, name: String) -> anyhow::Result<(String, Instant)> {
    let nodes: Objects<Node> = Objects::cluster(client.clone());
    let leases: Objects<Lease> = Objects::namespaced(client, "kube-node-lease");
    let lease = json!({
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()},
    });
    leases.create(&serde_json::from_value(lease)?).await?;
    let start = Instant::now();
    let node =
        json!({"metadata": {"name": name}, "spec": {"taints": [{"key": "bench", "effect": "NoSchedule"}]}});
    let created = nodes.create(&serde_json::from_value(node)?).await?;
    let head = json!({"name": name, "uid": created.metadata.uid, "labels": {"type": "virtual-kubelet"}});
    let metadata = json!({"apiVersion": "v1", "kind": "Node", "metadata": head});
    nodes.patch(&name, Patch::Apply(&metadata)).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": created.metadata.uid});
    leases.patch(&name, Patch::Merge(&json!({"metadata": {"ownerReferences": [owner]}}))).await?;
    let addresses = json!([{"$patch": "replace"}, {"type": "InternalIP", "address": "127.0.0.1"}]);
    nodes.patch_status(&name, Patch::Strategic(&json!({"status": {"addresses": addresses}}))).await?;
    let condition = json!({"type": "Ready", "status": "True", "reason": "Bench", "message": "bench"});
    let status = json!({"capacity": {"cpu": "20", "memory": "100Gi"}, "conditions": [condition]});
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
    nodes.patch_status(&name, Patch::Apply(&body)).await?;
    Ok((name, start))
}
