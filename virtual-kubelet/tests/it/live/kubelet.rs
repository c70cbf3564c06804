//! The kubelet API of a running command: through the API server with kubectl, and directly.

mod addresses;
mod clients;
mod direct_requests;
mod go_original;
mod half_open_connections;
mod kubectl_commands;
mod security;

use std::{collections::BTreeMap, fs, path::PathBuf};

use tempfile::TempDir;
use vk_testing::{
    ControlPlane,
    control_plane::Certificate,
    eventually,
    kubectl_matrix::{KubectlSession, Target},
};

use super::{Process, SOON, becomes_ready, ports, run};

/// A node with a serving certificate that the API server trusts.
struct Served<'a> {
    cluster: &'a ControlPlane,
    node: String,
    port: u16,
    process: Process,
    folder: TempDir,
}

// === impl Served ===

impl<'a> Served<'a> {
    async fn start(cluster: &'a ControlPlane, node: &str, flags: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let certificate = cluster.serving_certificate(node, &["127.0.0.1", "localhost", node]).unwrap();
        let (cert, key) = write_pair(&folder, &certificate);
        let port = ports(1);
        let given = [
            "--no-port",
            "--nodename",
            node,
            "--internal-ip",
            "127.0.0.1",
            "--stream-creation-timeout",
            "10s",
        ];
        let text = port.to_string();
        let files = [
            "--port",
            &text,
            "--tls-cert-file",
            cert.to_str().unwrap(),
            "--tls-private-key-file",
            key.to_str().unwrap(),
        ];
        let process = run(cluster, &[&given[..], &files, flags].concat()).start();
        becomes_ready(cluster, node).await;
        Self { cluster, node: node.to_owned(), port, process, folder }
    }

    /// Nobody is left in a session.
    async fn no_sessions(&self) {
        let admin = self.cluster.client_certificate("admin", &["system:masters"]).unwrap();
        let admin = direct_requests::Caller::with_certificate(admin);
        eventually("all sessions are over", SOON, || async {
            let answer = admin
                .call(self.cluster.ca_pem(), self.port, "/metrics")
                .map_err(|error| error.to_string())?;
            let open = answer.body.lines().filter(|line| line.contains("virtual_kubelet_server_sessions{"));
            if answer.code == 200 && open.clone().all(|line| line.ends_with(" 0")) {
                return Ok(());
            }
            Err(format!("{} {:?}", answer.code, open.collect::<Vec<_>>()))
        })
        .await;
    }

    /// A pod on it for kubectl.
    async fn stage(&self) -> KubectlSession {
        let crashing = [("run-for", "1s"), ("exit-code", "1"), ("restart-backoff", "1s")];
        let crashing: BTreeMap<String, String> = crashing
            .map(|(name, value)| (format!("mock.virtual-kubelet.io/{name}"), value.to_owned()))
            .into();
        KubectlSession::open(Target {
            kubectl: self.cluster.kubectl().unwrap(),
            kubeconfig: self.cluster.admin_kubeconfig().to_owned(),
            node: self.node.clone(),
            image: "example.com/app:1".to_owned(),
            command: Vec::new(),
            crashing,
        })
        .await
    }
}

/// Writes a certificate and its key where the command finds them.
fn write_pair(folder: &TempDir, certificate: &Certificate) -> (PathBuf, PathBuf) {
    let (cert, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    fs::write(&cert, &certificate.cert_pem).unwrap();
    fs::write(&key, &certificate.key_pem).unwrap();
    (cert, key)
}
