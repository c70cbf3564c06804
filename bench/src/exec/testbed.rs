//! One API server with two nodes, ours and a bare kubelet, and a pod on each.

use std::{fs, path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::json;
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::{TlsConnector, client::TlsStream};
use vk_testing::{ControlPlane, Process, control_plane};

use crate::{
    candidate::{Candidate, Candidates, NODE, ready},
    host_info::HostInfo,
};

const BARE_NODE: &str = "bare";
/// Next to the port of our node, and below those of the control plane.
const BARE_PORT: u16 = 11_998;

/// A node and its process.
pub(super) struct TestNode {
    pub(super) is_bare: bool,
    pub(super) process: Process,
    /// The path of the exec subresource, without the query.
    pub(super) path: String,
}

pub(super) struct Testbed {
    pub(super) ours: TestNode,
    pub(super) bare: TestNode,
    /// The host and port of the API server.
    pub(super) host: String,
    connector: TlsConnector,
    _cluster: ControlPlane,
}

impl Testbed {
    pub(super) async fn start(field: &Candidates, host: &mut HostInfo) -> anyhow::Result<Self> {
        let cluster = ControlPlane::start(control_plane::Options::default()).await?;
        host.record_version(&cluster).await?;
        let namespace = cluster.namespace("bench").await?;
        let nodes: Api<Node> = Api::all(cluster.admin()?);
        let pods: Api<Pod> = Api::namespaced(cluster.admin()?, namespace.name());

        let (certificate, key) = serving(&cluster, NODE)?;
        let mut command = field.one_node(Candidate::Ours, &cluster)?;
        command.args(["--internal-ip", "127.0.0.1", "--state-dir"]).arg(cluster.data_dir().join("state"));
        command.arg("--tls-cert-file").arg(certificate).arg("--tls-private-key-file").arg(key);
        let mut ours = field.start(Candidate::Ours, "execs", command)?;

        let (certificate, key) = serving(&cluster, BARE_NODE)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bare-kubelet", "--port", &BARE_PORT.to_string(), "--certificate"]).arg(certificate);
        command.arg("--key").arg(key);
        let bare = field.start(Candidate::Bare, "execs", command)?;
        register_bare(&nodes).await?;
        ready(&nodes, &mut ours).await?;
        for node in [NODE, BARE_NODE] {
            let pod = json!({"metadata": {"name": node}, "spec": {
                "nodeName": node, "automountServiceAccountToken": false, "enableServiceLinks": false,
                "containers": [{"name": "main", "image": "bench"}],
            }});
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        }
        runs(&pods, NODE).await?;

        let path = |pod: &str| format!("/api/v1/namespaces/{}/pods/{pod}/exec", namespace.name());
        let host = cluster.url().strip_prefix("https://").context("the API server speaks TLS")?.to_owned();
        Ok(Self {
            ours: TestNode { is_bare: false, process: ours, path: path(NODE) },
            bare: TestNode { is_bare: true, process: bare, path: path(BARE_NODE) },
            host,
            connector: connector(&cluster)?,
            _cluster: cluster,
        })
    }

    /// Opens a connection to the API server as administrator.
    pub(super) async fn connect(&self) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.host).await.context("cannot connect to the API server")?;
        stream.set_nodelay(true)?;
        let address = stream.peer_addr()?.ip();
        Ok(self.connector.connect(ServerName::from(address), stream).await?)
    }
}

fn connector(cluster: &ControlPlane) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(cluster.ca_pem().as_bytes()) {
        roots.add(certificate?)?;
    }
    let admin = cluster.client_certificate("admin", &["system:masters"])?;
    let chain = CertificateDer::pem_slice_iter(admin.cert_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(admin.key_pem.as_bytes())?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Writes a serving certificate of the cluster and its key to files.
fn serving(cluster: &ControlPlane, node: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
    let pair = cluster.serving_certificate(node, &["127.0.0.1"])?;
    let file = |end: &str| cluster.data_dir().join(format!("bench-{node}.{end}"));
    fs::write(file("crt"), pair.cert_pem)?;
    fs::write(file("key"), pair.key_pem)?;
    Ok((file("crt"), file("key")))
}

/// Creates the Node of the bare kubelet.
async fn register_bare(nodes: &Api<Node>) -> anyhow::Result<()> {
    let node = json!({"metadata": {"name": BARE_NODE},
        "spec": {"taints": [{"key": "bench", "effect": "NoSchedule"}]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": BARE_PORT}},
    }});
    nodes.patch_status(BARE_NODE, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn runs(pods: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let phase = pods.get_status(name).await?.status.and_then(|status| status.phase);
        if phase.as_deref() == Some("Running") {
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < Duration::from_mins(1), "the pod does not run: {phase:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
