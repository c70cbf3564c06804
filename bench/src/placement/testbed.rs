//! What the parts measure with: nodes, the placement process, pods.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{ControlPlane, Process, Usage, control_plane};

use super::process_metrics::{Samples, get_plain};
use crate::candidate::{Candidate, Candidates, is_ready};

/// The scheduling gate of placement.
pub(super) const GATE: &str = "multicluster.virtual-kubelet.io/placement";
/// The taint of virtual nodes.
const TAINT: &str = "virtual-kubelet.io/provider";
/// Processes get ready, and small changes take effect, within this time.
const SOON: Duration = Duration::from_mins(2);
/// How often a condition is checked.
const POLL: Duration = Duration::from_millis(100);
/// Ports from 20000 on are for the control plane.
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// Several mock nodes in one process.
pub(super) struct MockNodes {
    /// Their names, with `{}` for the number.
    pub(super) pattern: &'static str,
    pub(super) count: u16,
    /// Whether only pods for virtual nodes go there.
    pub(super) is_tainted: bool,
    /// The configuration of the provider.
    pub(super) config: Value,
}

/// The virtual nodes of a lower cluster, in one process.
pub(super) struct ClusterNodes<'a> {
    /// Their names.
    pub(super) names: &'a [String],
    /// The configuration of the provider, without the kubeconfig.
    pub(super) config: Value,
    pub(super) lower: &'a ControlPlane,
}

/// The placement process, with its metrics.
pub(super) struct PlacementProcess {
    process: Process,
    metrics_port: u16,
}

// === impl MockNodes ===

impl MockNodes {
    /// Starts them and waits until they are Ready.
    pub(super) async fn start(
        &self,
        field: &Candidates,
        who: Candidate,
        cluster: &ControlPlane,
    ) -> anyhow::Result<Process> {
        let config = json!({
            "provider": "mock",
            "metricsAddr": "off",
            "internalIP": "127.0.0.1",
            "disableTaint": !self.is_tainted,
            "nodes": [{"count": self.count, "namePattern": self.pattern, "portBase": free_ports(self.count)?}],
            "providerConfig": self.config,
        });
        let file = cluster.data_dir().join("mock-nodes.json");
        fs::write(&file, config.to_string())?;
        let mut command = run_command(field, cluster);
        command.arg("--config").arg(&file);
        let mut process = field.start(who, "placement-mock-nodes", command)?;
        let names: Vec<_> =
            (0..self.count).map(|index| self.pattern.replace("{}", &index.to_string())).collect();
        wait_ready(cluster, &names, &mut process).await?;
        Ok(process)
    }
}

// === impl ClusterNodes ===

impl ClusterNodes<'_> {
    /// Starts them and waits until they are Ready.
    pub(super) async fn start(&self, field: &Candidates, upper: &ControlPlane) -> anyhow::Result<Process> {
        let file = upper.data_dir().join("cluster-nodes.json");
        let mut config = self.config.clone();
        config["kubeconfig"] = json!(self.lower.admin_kubeconfig());
        fs::write(&file, config.to_string())?;
        let first = self.names.first().context("no virtual node")?;
        let port = free_ports(u16::try_from(self.names.len())?)?;
        let mut command = run_command(field, upper);
        command.args(["--provider", "cluster", "--nodename", first, "--metrics-addr", "off"]);
        command.args(["--internal-ip", "127.0.0.1", "--port", &port.to_string()]);
        command.arg("--provider-config").arg(&file);
        let mut process = field.start(Candidate::Ours, "placement-cluster-nodes", command)?;
        wait_ready(upper, self.names, &mut process).await?;
        Ok(process)
    }
}

fn run_command(field: &Candidates, cluster: &ControlPlane) -> Command {
    let mut command = Command::new(field.ours());
    // Nobody would approve a certificate.
    command.args(["run", "--log-level", "warn", "--rotate-server-certificates=false"]);
    command.arg("--state-dir").arg(cluster.data_dir().join("state"));
    command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
    command
}

// === impl PlacementProcess ===

impl PlacementProcess {
    /// Starts `virtual-kubelet placement` and waits until it leads.
    pub(super) async fn start(
        field: &Candidates,
        cluster: &ControlPlane,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let placement = Self::start_without_leading(field, cluster, flags).await?;
        wait_for("the placement process leads", async || {
            let leads = placement.metrics().await?.sum("virtual_kubelet_placement_leader", &[]);
            Ok(leads > 0.0)
        })
        .await?;
        Ok(placement)
    }

    /// Starts `virtual-kubelet placement` and waits until it is ready.
    pub(super) async fn start_without_leading(
        field: &Candidates,
        cluster: &ControlPlane,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let metrics_port = free_ports(1)?;
        let mut command = Command::new(field.ours());
        command.args(["placement", "--log-level", "warn"]).args(flags);
        command.args(["--metrics-addr", &format!("127.0.0.1:{metrics_port}")]);
        command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        let mut process = field.start(Candidate::Ours, "placement", command)?;
        wait_for("the placement process is ready", async || {
            anyhow::ensure!(process.ended()?.is_none(), "the placement process has ended: see its log");
            // It does not listen yet.
            Ok(get_plain(metrics_port, "/readyz").await.is_ok_and(|body| body.is_some()))
        })
        .await?;
        Ok(Self { process, metrics_port })
    }

    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.process.id()).context("the placement process has ended: see its log")
    }

    pub(super) async fn metrics(&self) -> anyhow::Result<Samples> {
        Samples::of_process(self.metrics_port).await.context("read the metrics of the placement process")
    }
}

/// Runs our command and returns its output.
pub(super) fn output(field: &Candidates, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(field.ours()).args(arguments).stdin(Stdio::null()).output()?;
    let problem = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "virtual-kubelet {}: {problem}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// The configuration of a kube-scheduler without the limit of 50 requests per second, which would otherwise be what is measured.
pub(super) fn scheduler_config(extenders: &Value) -> String {
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"qps": 10_000, "burst": 10_000},
        "extenders": extenders,
    })
    .to_string()
}

/// A control plane that gives new nodes no taint, because no controller runs there that would remove it when they are Ready.
pub(super) fn without_node_taints(mut options: control_plane::Options) -> control_plane::Options {
    options.extra_api_server_args.push("--disable-admission-plugins=TaintNodesByCondition".to_owned());
    options
}

/// Waits until nodes are Ready.
pub(super) async fn wait_ready(
    cluster: &ControlPlane,
    names: &[String],
    process: &mut Process,
) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(cluster.admin()?);
    wait_for("the nodes are Ready", async || {
        anyhow::ensure!(process.ended()?.is_none(), "the process of the nodes has ended: see its log");
        for name in names {
            if nodes.get_opt(name).await?.is_none_or(|node| !is_ready(&node)) {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await
}

/// Waits for a condition.
pub(super) async fn wait_for(
    what: &str,
    mut check: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !check().await? {
        anyhow::ensure!(begun.elapsed() < SOON, "not within {SOON:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// The first of several consecutive free ports, none of which was returned before.
pub(super) fn free_ports(count: u16) -> anyhow::Result<u16> {
    static USED: AtomicU16 = AtomicU16::new(0);
    // Concurrent runs begin elsewhere.
    let offset = u16::try_from(std::process::id() % 4_000)?;
    loop {
        let first = PORTS.start + offset + USED.fetch_add(count, Ordering::Relaxed);
        anyhow::ensure!(first + count <= PORTS.end, "no {count} free ports in a row from {}", PORTS.start);
        let is_free = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        if (first..first + count).all(is_free) {
            return Ok(first);
        }
    }
}

/// Writes a serving certificate of the cluster for 127.0.0.1 and its key, as `bench.crt` and `bench.key`.
pub(super) fn write_certificate(cluster: &ControlPlane, folder: &Path) -> anyhow::Result<[String; 3]> {
    let pair = cluster.serving_certificate("bench", &["127.0.0.1"])?;
    let files = [("bench.crt", &*pair.cert_pem), ("bench.key", &pair.key_pem), ("ca.crt", cluster.ca_pem())];
    let [certificate, key, ca] = files.map(|(name, text)| write(&folder.join(name), text));
    Ok([certificate?, key?, ca?])
}

/// Writes a certificate of kube-scheduler and its key, as `scheduler.crt` and `scheduler.key`.
pub(super) fn write_scheduler_certificate(
    cluster: &ControlPlane,
    folder: &Path,
) -> anyhow::Result<[String; 2]> {
    let pair = cluster.client_certificate("system:kube-scheduler", &[])?;
    let files = [("scheduler.crt", &*pair.cert_pem), ("scheduler.key", &pair.key_pem)];
    let [certificate, key] = files.map(|(name, text)| write(&folder.join(name), text));
    Ok([certificate?, key?])
}

fn write(path: &Path, text: &str) -> anyhow::Result<String> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}

pub(super) fn pod_name(index: usize) -> String {
    format!("pod-{index}")
}

/// A pod for virtual nodes. Pods with consecutive numbers have different requests, of so many kinds.
pub(super) fn pod(index: usize, shapes: usize) -> Value {
    let shape = index % shapes.max(1);
    let requests = json!({"cpu": format!("{}m", 100 + shape), "memory": format!("{}Mi", 64 + shape)});
    json!({
        "metadata": {"name": pod_name(index), "labels": {"app": format!("app-{shape}")}},
        "spec": {
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "bench", "resources": {"requests": requests}}],
        },
    })
}

/// The pod behind the scheduling gate.
pub(super) fn gated(mut pod: Value) -> Value {
    pod["spec"]["schedulingGates"] = json!([{"name": GATE}]);
    pod
}
