//! N nodes to Ready, beside a bare client that makes the same writes; and what the process costs while they idle.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{Api, api::ListParams};
use serde_json::json;
use tokio::time::Instant;
use vk_kube::{Client, Metrics, Objects, Patch};
use vk_testing::{ControlPlane, Process, Usage, control_plane};

use crate::report::{Figure, publish};

#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// How many nodes
    #[arg(long, default_value_t = 500)]
    count: usize,
    /// How long to watch them idle, in seconds
    #[arg(long, default_value_t = 30)]
    idle: u64,
    /// The command to measure
    #[arg(long)]
    virtual_kubelet: PathBuf,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Nodes {
    pub(crate) async fn measure(self) -> anyhow::Result<()> {
        let bare = self.bare().await.context("bare client")?;
        let (one, _, _) = self.ours(1).await.context("one node")?;
        let (many, ready, cores) = self.ours(self.count).await.context("many nodes")?;
        let count = self.count;
        let figures = [
            Figure::new(format!("bare client: {count} nodes written"), bare.as_secs_f64(), "s"),
            Figure::new(format!("virtual-kubelet: start to {count} nodes Ready"), ready.as_secs_f64(), "s"),
            Figure::new(
                "ratio of the rates (1 is the bare client's)",
                bare.as_secs_f64() / ready.as_secs_f64(),
                "",
            ),
            Figure::new("resident with 1 node, idle", one.megabytes(), "MB"),
            Figure::new(format!("resident with {count} nodes, idle"), many.megabytes(), "MB"),
            Figure::new(format!("processor with {count} nodes, idle"), cores, "cores"),
        ];
        publish(&self.out, "nodes", &figures)
    }

    /// The same writes that a node's registration takes, by a client that does nothing else.
    async fn bare(&self) -> anyhow::Result<Duration> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        let client = Client::fixed(cluster.admin()?, Metrics::default());
        let begun = Instant::now();
        stream::iter(0..self.count)
            .map(|index| write_node(client.clone(), format!("bare-{index}")))
            .buffer_unordered(self.count)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(begun.elapsed())
    }

    /// Usage when idle, time until all are Ready, and cores in use while idle.
    async fn ours(&self, count: usize) -> anyhow::Result<(Usage, Duration, f64)> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        let config = cluster.data_dir().join("vk.yaml");
        let nodes =
            format!("{{count: {count}, namePattern: 'vk-{{}}', portBase: 11000, address: 127.0.0.1}}");
        std::fs::write(&config, format!("provider: mock\nmetricsAddr: 'off'\nnodes:\n- {nodes}\n"))?;
        let begun = Instant::now();
        let mut command = Command::new(&self.virtual_kubelet);
        command.arg("run").arg("--config").arg(&config).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        // The control plane takes its ports from 20000 on.
        let mut process = Process::spawn(command.args(["--log-level", "warn"]).stdout(Stdio::null()))?;
        let api: Api<Node> = Api::all(cluster.admin()?);
        while ready(&api).await? < count {
            anyhow::ensure!(process.ended()?.is_none(), "virtual-kubelet ended");
            anyhow::ensure!(begun.elapsed() < Duration::from_mins(5), "not Ready after five minutes");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let took = begun.elapsed();
        let (from, before) = (Instant::now(), Usage::of(process.id())?);
        tokio::time::sleep(Duration::from_secs(self.idle)).await;
        let after = Usage::of(process.id())?;
        Ok((after, took, after.cores_since(&before, from.elapsed())))
    }
}

/// Whether a node is Ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn ready(nodes: &Api<Node>) -> anyhow::Result<usize> {
    Ok(nodes.list(&ListParams::default()).await?.items.iter().filter(|node| is_ready(node)).count())
}

async fn write_node(client: Client, name: String) -> anyhow::Result<()> {
    let nodes: Objects<Node> = Objects::cluster(client.clone());
    let leases: Objects<Lease> = Objects::namespaced(client, "kube-node-lease");
    let lease = json!({
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
    });
    leases.create(&serde_json::from_value(lease)?).await?;
    let node =
        json!({"metadata": {"name": name}, "spec": {"taints": [{"key": "bench", "effect": "NoSchedule"}]}});
    let created = nodes.create(&serde_json::from_value(node)?).await?;
    let head = json!({"name": name, "uid": created.metadata.uid, "labels": {"type": "virtual-kubelet"}});
    let metadata = json!({"apiVersion": "v1", "kind": "Node", "metadata": head});
    nodes.patch(&name, &Patch::Apply(metadata)).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": created.metadata.uid});
    leases.patch(&name, &Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}))).await?;
    let addresses = json!([{"$patch": "replace"}, {"type": "InternalIP", "address": "127.0.0.1"}]);
    nodes.patch_status(&name, &Patch::Strategic(json!({"status": {"addresses": addresses}}))).await?;
    let condition = json!({"type": "Ready", "status": "True", "reason": "Bench", "message": "bench"});
    let status = json!({"capacity": {"cpu": "20", "memory": "100Gi"}, "conditions": [condition]});
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
    nodes.patch_status(&name, &Patch::Apply(body)).await?;
    Ok(())
}
