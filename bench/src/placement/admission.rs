//! Creation of pods that are converted: by the policy, by the webhook, and not at all. Each has an API server of its own, and they take turns
//! with every request.

use std::{fs, process::Command, time::Duration};

use anyhow::Context as _;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;
use vk_testing::{ControlPlane, Process, control_plane, kubectl};

use super::{
    Session,
    testbed::{free_ports, output, wait_for, write_certificate},
};
use crate::{
    candidate::{Candidate, Candidates},
    report::{Figure, print_progress, thousands},
};

const REPORT: &str = "created-pods";
/// The annotation that conversion writes.
const LOWER_NODES: &str = "multicluster.virtual-kubelet.io/lower-nodes";
/// Requests that are not measured: connections are opened, and code that runs for the first time is slow.
const WARM_UP: usize = 50;
/// A version whose conversion is done by the webhook.
const WEBHOOK_VERSION: &str = "1.33";

#[derive(Debug, Args)]
pub(super) struct AdmissionLoad {
    /// Pods that are created as a dry run, of each kind
    #[arg(long, default_value_t = 1000)]
    admission_pods: usize,
}

/// An API server, and what converts pods there.
struct AdmissionServer {
    kind: Candidate,
    pods: Api<Pod>,
    latencies: Vec<Duration>,
    _webhook: Option<Process>,
    cluster: ControlPlane,
}

impl AdmissionLoad {
    pub(super) async fn measure(&self, session: &Session<'_>) -> anyhow::Result<()> {
        let count = self.admission_pods;
        let mut report = session.report(Candidate::Unconverted);
        print_progress(&format!("{} created pods", thousands(count)));
        let mut servers = Vec::new();
        for kind in [Candidate::Unconverted, Candidate::Policy, Candidate::Webhook] {
            servers.push(Box::pin(AdmissionServer::start(kind, session.field)).await?);
        }
        report.host.record_version(&servers[0].cluster).await?;
        for index in 0..WARM_UP + count {
            for server in &mut servers {
                let latency = server.create(index).await?;
                if index >= WARM_UP {
                    server.latencies.push(latency);
                }
            }
        }
        for server in &mut servers {
            report.outcome(server.kind, count, Ok(server.figures()))?;
        }
        report.publish(session.out, REPORT)
    }
}

// === impl AdmissionServer ===

impl AdmissionServer {
    async fn start(kind: Candidate, field: &Candidates) -> anyhow::Result<Self> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        let webhook = match kind {
            Candidate::Policy => {
                let kubeconfig = cluster.admin_kubeconfig().display().to_string();
                let arguments =
                    ["placement", "print", "policy", "--gates", "estimate", "--kubeconfig", &kubeconfig];
                apply(&cluster, &output(field, &arguments)?).await?;
                None
            }
            Candidate::Webhook => Some(start_webhook(field, &cluster).await?),
            _ => None,
        };
        let namespace = cluster.namespace("bench").await?;
        let pods = Api::namespaced(cluster.admin()?, namespace.name());
        let server = Self { kind, pods, latencies: Vec::new(), _webhook: webhook, cluster };
        let expected = (kind != Candidate::Unconverted).then_some("!old,disk=ssd,gpu in (a100,h100)");
        // API servers notice policies and webhooks a moment later. A webhook that is not ready yet refuses pods.
        wait_for(&format!("pods are converted as expected with {kind}"), async || {
            let created = server.pods.create(&parameters(), &serde_json::from_value(pod(0))?).await;
            let Ok(created) = created else { return Ok(false) };
            let annotations = created.metadata.annotations.unwrap_or_default();
            Ok(annotations.get(LOWER_NODES).map(String::as_str) == expected)
        })
        .await?;
        Ok(server)
    }

    /// Creates a pod as a dry run. Returns how long that took.
    async fn create(&self, index: usize) -> anyhow::Result<Duration> {
        let (pod, parameters) = (serde_json::from_value(pod(index))?, parameters());
        let begun = Instant::now();
        self.pods
            .create(&parameters, &pod)
            .await
            .with_context(|| format!("create a pod with {}", self.kind))?;
        Ok(begun.elapsed())
    }

    fn figures(&mut self) -> Vec<Figure> {
        self.latencies.sort();
        let at = |percent: usize| {
            let index = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
            self.latencies.get(index).map_or(0.0, Duration::as_secs_f64) * 1000.0
        };
        vec![("p50 of a create", at(50), "ms"), ("p99 of a create", at(99), "ms")]
    }
}

fn parameters() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// Starts the webhook and tells the API server about it.
async fn start_webhook(field: &Candidates, cluster: &ControlPlane) -> anyhow::Result<Process> {
    let port = free_ports(1)?.to_string();
    let [certificate, key, ca] = write_certificate(cluster, cluster.data_dir())?;
    let mut command = Command::new(field.ours());
    command.args([
        "--metrics-addr",
        "off",
        "--log-level",
        "warn",
        "webhook",
        "--address",
        "127.0.0.1",
        "--port",
        &port,
        "--gates",
        "estimate",
    ]);
    command.args(["--tlscert", &certificate, "--tlskey", &key]);
    let process = field.start(Candidate::Webhook, "placement", command)?;
    let url = format!("https://127.0.0.1:{port}");
    let print = ["placement", "print", "policy", "--gates", "estimate", "--server-version", WEBHOOK_VERSION];
    let manifest = output(field, &[&print[..], &["--webhook-url", &url, "--webhook-ca", &ca]].concat())?;
    apply(cluster, &manifest).await?;
    Ok(process)
}

async fn apply(cluster: &ControlPlane, manifest: &str) -> anyhow::Result<()> {
    let file = cluster.data_dir().join("manifest.yaml");
    fs::write(&file, manifest)?;
    let file = file.display().to_string();
    let output = kubectl(cluster, ["apply", "--filename", &file]).await?;
    anyhow::ensure!(output.success(), "kubectl apply: {}", output.stderr);
    Ok(())
}

/// A pod that opted in, with constraints for lower nodes.
fn pod(index: usize) -> Value {
    json!({
        "metadata": {"name": format!("pod-{index}"), "labels": {"virtual-pod": "true", "app": "bench"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [
                    {"key": "gpu", "operator": "In", "values": ["a100", "h100"]},
                    {"key": "old", "operator": "DoesNotExist"},
                ]},
            ]}}},
            "containers": [{
                "name": "main", "image": "bench",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            }],
        },
    })
}
