//! The whole kubectl matrix on the mock, over WebSocket and over SPDY.

mod older_versions;
mod slow_clients;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tempfile::TempDir;
use tokio::time::Instant;
use vk_testing::{
    ControlPlane, Process, Usage, eventually,
    kubectl_matrix::{self as matrix, KubectlSession, Target},
};

use self::slow_clients::SlowClients;

const FILE: usize = 50 << 20;
const REQUESTS: usize = 200;
const FORWARDED: usize = 100 << 20;
const HALF_OPEN: usize = 10_000;

/// A node that runs in a process of its own.
struct Served<'a> {
    cluster: &'a ControlPlane,
    node: String,
    port: u16,
    process: Process,
    _folder: TempDir,
}

// === impl Served ===

impl<'a> Served<'a> {
    /// As the administrator, with a certificate of the cluster's authority.
    async fn start(cluster: &'a ControlPlane, node: &str, port: u16, flags: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let pair = cluster.serving_certificate(node, &["127.0.0.1"]).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (certificate, key) = (file("tls.crt", &pair.cert_pem), file("tls.key", &pair.key_pem));
        let mut all = vec!["--tls-cert-file", &certificate, "--tls-private-key-file", &key];
        all.extend(flags);
        Self::start_as(cluster, cluster.admin_kubeconfig(), folder, node, port, &all).await
    }

    /// As whom this kubeconfig names.
    async fn start_as(
        cluster: &'a ControlPlane,
        kubeconfig: &Path,
        folder: TempDir,
        node: &str,
        port: u16,
        flags: &[&str],
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"));
        command
            .args(["run", "--provider", "mock", "--metrics-addr", "off", "--log-level", "warn"])
            .args(["--nodename", node, "--internal-ip", "127.0.0.1", "--port", &port.to_string()])
            .args(["--state-dir", "state", "--kubeconfig"])
            .arg(kubeconfig)
            .args(flags)
            .env_clear()
            .env("HOME", folder.path())
            .current_dir(folder.path())
            .stdout(Stdio::null());
        let process = Process::spawn(&mut command).unwrap();
        let nodes: Api<Node> = Api::all(cluster.admin().unwrap());
        eventually("the node is Ready", Duration::from_mins(1), || async {
            let found = nodes.get(node).await.map_err(|error| error.to_string())?;
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
            if ready { Ok(()) } else { Err("it is not".to_owned()) }
        })
        .await;
        Self { cluster, node: node.to_owned(), port, process, _folder: folder }
    }

    async fn stage(&self) -> KubectlSession {
        self.stage_with(self.cluster.kubectl().unwrap()).await
    }

    /// The same with this kubectl.
    async fn stage_with(&self, kubectl: PathBuf) -> KubectlSession {
        let crashing = [("run-for", "1s"), ("exit-code", "1"), ("restart-backoff", "1s")];
        let crashing: BTreeMap<String, String> = crashing
            .map(|(name, value)| (format!("mock.virtual-kubelet.io/{name}"), value.to_owned()))
            .into();
        KubectlSession::open(Target {
            kubectl,
            kubeconfig: self.cluster.admin_kubeconfig().to_owned(),
            node: self.node.clone(),
            image: "example.com/app:1".to_owned(),
            command: Vec::new(),
            crashing,
        })
        .await
    }
}

#[expect(clippy::print_stdout, reason = "what was measured")]
async fn whole_matrix(way: &str, served: &Served<'_>, stage: KubectlSession) {
    let timed = async |what: &str, work: std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
        let begun = Instant::now();
        work.await;
        println!("{way}: {what}: {:.2} s", begun.elapsed().as_secs_f64());
    };
    timed(
        "logs",
        Box::pin(async {
            matrix::logs::whole_tail_and_limit(&stage).await;
            matrix::logs::times_and_since(&stage).await;
            matrix::logs::follow(&stage).await;
            matrix::logs::previous(&stage).await;
            matrix::logs::refusals(&stage).await;
        }),
    )
    .await;
    timed(
        "exec",
        Box::pin(async {
            matrix::exec::output_and_errors(&stage).await;
            matrix::exec::exit_codes(&stage).await;
            matrix::exec::input_until_its_end(&stage).await;
            matrix::exec::terminal(&stage).await;
            matrix::exec::refusals(&stage).await;
        }),
    )
    .await;
    timed("100 MiB of output", Box::pin(matrix::exec::much_output(&stage, FORWARDED))).await;
    timed("cp of 50 MiB both ways", Box::pin(matrix::copy::both_ways(&stage, FILE))).await;
    timed("cp of a missing file", Box::pin(matrix::copy::missing_file(&stage))).await;
    timed("attach", Box::pin(matrix::attach::output(&stage))).await;
    timed("200 requests", Box::pin(matrix::forward::parallel_requests(&stage, 8080, REQUESTS))).await;
    timed("100 MiB forwarded and back", Box::pin(matrix::forward::much(&stage, 9000, FORWARDED))).await;
    timed("a port that is closed", Box::pin(matrix::forward::refused_port(&stage, 1, 8080))).await;
    timed("debug", Box::pin(matrix::debug::ephemeral_container(&stage))).await;
    let usage = Usage::of(served.process.id()).unwrap();
    println!("{way}: the command has {} MiB resident", usage.resident_bytes >> 20);
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_with_websockets_all_the_way() {
    let served = Served::start(ControlPlane::shared().await, "matrix-websocket", 11_501, &[]).await;
    whole_matrix("websocket", &served, served.stage().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_with_spdy() {
    let flags = ["--stream-websockets=false"];
    let served = Served::start(ControlPlane::shared().await, "matrix-spdy", 11_502, &flags).await;
    whole_matrix("spdy", &served, served.stage().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_half_open_connections_take_little_memory_and_nobodys_place() {
    let served = Served::start(ControlPlane::shared().await, "besieged", 11_503, &[]).await;
    let stage = served.stage().await;
    let usage = || Usage::of(served.process.id()).unwrap();
    stage.run_ok(&["exec", "web", "--", "true"]).await;
    let before = usage();
    raise_own_limit();
    let mut clients = SlowClients::new(served.cluster.ca_pem(), served.port);
    let mut most = 0;
    while clients.strength() < HALF_OPEN {
        clients.grow(500);
        clients.drip();
        most = most.max(usage().resident_bytes);
        // Authenticated callers are still served.
        stage.run_ok(&["logs", "web", "--tail=1"]).await;
    }
    println!(
        "{HALF_OPEN} half-open connections: {} MiB before, {} MiB at most",
        before.resident_bytes >> 20,
        most >> 20
    );
    assert!(most < before.resident_bytes + (64 << 20), "{before:?} {most}");
    drop(clients);
    eventually("nothing of them is left", Duration::from_mins(1), || async {
        let now = usage().files;
        if now <= before.files + 10 { Ok(()) } else { Err(format!("{now} files, {} before", before.files)) }
    })
    .await;
    stage.close().await;
}

/// This process has all those connections open at its end.
fn raise_own_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}
