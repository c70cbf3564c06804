//! Runs the real command against a real control plane, and against servers that are not API servers.

mod admin;
#[path = "../e2e/pods/backend_log.rs"]
#[allow(dead_code, reason = "the long tests use all of it")]
mod backend_log;
mod bootstrap;
mod cluster;
mod configuration;
mod container_node;
mod crash;
mod credentials;
mod cri;
mod dev;
mod eci;
mod fleet;
mod go_original;
mod groups;
mod inconsistent_backend;
mod kubelet;
mod leader;
mod lease_conflict;
mod local;
mod logs;
mod matrix;
mod one_namespace;
mod permissions;
mod placement_explain;
mod placement_policy;
mod placement_rbac;
mod problem_pods;
mod process_lifecycle;
mod provider;
#[path = "../e2e/kubectl/slow_clients.rs"]
mod slow_clients;
mod startup_errors;
mod workload;
#[path = "../e2e/pods/workload_test.rs"]
#[allow(dead_code, reason = "the long tests use all of it")]
mod workload_test;

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Ipv6Addr, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{Client, Metrics, Objects};
use vk_testing::{ControlPlane, eventually};

use crate::{Outcome, Run, vk};

/// Generous, for a busy machine; nothing here takes more than seconds.
const SOON: Duration = Duration::from_secs(30);

/// A command that runs in the background. It is killed at the end of the test.
struct Process {
    child: Child,
    folder: TempDir,
}

// === impl Run ===

impl Run {
    /// Starts the command in the background.
    fn start(mut self) -> Process {
        let create = |name| File::create(self.folder.path().join(name)).unwrap();
        self.command.stdin(Stdio::null()).stdout(create("stdout")).stderr(create("stderr"));
        Process { child: self.command.spawn().unwrap(), folder: self.folder }
    }
}

// === impl Process ===

impl Process {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn stdout(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap()
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills the process, like the kernel's OOM killer.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has exited.
    async fn end(&mut self, limit: Duration) -> Outcome {
        let child = &mut self.child;
        let status = eventually("the command ends", limit, || {
            let status = child.try_wait().unwrap();
            async move { status.ok_or("it runs") }
        })
        .await;
        assert_eq!(status.signal(), None, "{}", self.stderr());
        Outcome { code: status.code().unwrap(), stdout: self.stdout(), stderr: self.stderr() }
    }

    /// Sends SIGTERM and waits until the process has exited.
    async fn stop(&mut self, limit: Duration) -> Outcome {
        self.signal(Signal::TERM);
        self.end(limit).await
    }
}

impl Drop for Process {
    #[expect(clippy::print_stderr, reason = "what the command said, beside the panic it led to")]
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("--- stdout\n{}\n--- stderr\n{}", self.stdout(), self.stderr());
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Checks the exit code and that exactly one error line contains all of these words. Log lines are ignored.
    #[track_caller]
    fn failed(&self, code: i32, words: &[&str]) -> String {
        assert_eq!(self.code, code, "{self:#?}");
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let [error] = errors.as_slice() else { panic!("not one line: {self:#?}") };
        for word in words {
            assert!(error.contains(word), "{word:?} is not in {error:?}");
        }
        (*error).to_owned()
    }
}

/// `run` as the administrator, with the mock and without an admin address unless these flags say otherwise.
fn run(cluster: &ControlPlane, flags: &[&str]) -> Run {
    run_as(cluster.admin_kubeconfig(), flags)
}

/// `run` with this kubeconfig.
fn run_as(kubeconfig: &Path, flags: &[&str]) -> Run {
    let port = ports(1).to_string();
    // In the directory of the run, so that nothing is left for the next one.
    let mut all = vec!["run", "--provider", "mock", "--metrics-addr", "off", "--state-dir", "state"];
    // Without --port, variables and files can set the port.
    if !flags.contains(&"--no-port") {
        all.extend(["--port", &port]);
    }
    all.extend(["--kubeconfig", kubeconfig.to_str().unwrap()]);
    all.extend(flags.iter().filter(|flag| **flag != "--no-port"));
    vk(&all)
}

/// The first of several consecutive free ports that no other test gets. Below the kernel's range for outgoing connections
/// and below the range of the control planes.
fn ports(count: u16) -> u16 {
    const FIRST: u16 = 11_000;
    const RANGE: u16 = 8_000;
    static USED: AtomicU16 = AtomicU16::new(0);
    // A concurrent run starts at another port.
    let begin = u16::try_from(std::process::id() % u32::from(RANGE)).unwrap();
    loop {
        let offset = USED.fetch_add(count, Ordering::Relaxed);
        let first = FIRST + (begin + offset) % RANGE;
        let free = |port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok();
        if (first..first + count).all(free) {
            return first;
        }
    }
}

fn nodes(cluster: &ControlPlane) -> Objects<Node> {
    Objects::all(Client::fixed(cluster.admin().unwrap(), Metrics::default()))
}

fn leases(cluster: &ControlPlane) -> Objects<Lease> {
    Objects::namespaced(Client::fixed(cluster.admin().unwrap(), Metrics::default()), "kube-node-lease")
}

/// The Node object.
async fn node(cluster: &ControlPlane, name: &str) -> Value {
    json!(nodes(cluster).get(name).await.unwrap())
}

/// Whether a node exists.
async fn exists(cluster: &ControlPlane, name: &str) -> bool {
    match nodes(cluster).get(name).await {
        Ok(_) => true,
        Err(error) if error.kind == vk_kube::Kind::NotFound => false,
        Err(error) => panic!("{error}"),
    }
}

/// Waits until a node's Ready condition has this status and reason.
async fn becomes(cluster: &ControlPlane, name: &str, status: &str, reason: &str, limit: Duration) -> Value {
    let nodes = nodes(cluster);
    let what = format!("node {name} has Ready={status} with reason {reason}");
    eventually(&what, limit, || async {
        let node = json!(nodes.get(name).await.map_err(|error| error.to_string())?);
        let ready = ready(&node);
        if ready["status"] == status && ready["reason"] == reason { Ok(node) } else { Err(ready.to_string()) }
    })
    .await
}

async fn becomes_ready(cluster: &ControlPlane, name: &str) -> Value {
    becomes(cluster, name, "True", "KubeletReady", SOON).await
}

/// The Ready condition of a node.
fn ready(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap_or_default()
}

/// The kubelet API port of a node.
fn kubelet_port(node: &Value) -> u64 {
    node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap()
}

/// Status code and response of a GET request.
fn get(port: u16, path: &str) -> Result<(u16, String), String> {
    let fail = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(fail)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(fail)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(fail)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(fail)?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or_else(|| format!("not HTTP: {answer:?}"))?, answer))
}

/// Waits until a GET request returns this status code.
async fn answers(port: u16, path: &str, code: u16, limit: Duration) -> String {
    eventually(&format!("{path} is answered with {code}"), limit, || async {
        let (seen, answer) = get(port, path)?;
        if seen == code { Ok(answer) } else { Err(answer) }
    })
    .await
}

/// Writes the administrator's kubeconfig with changes.
fn changed_kubeconfig(cluster: &ControlPlane, folder: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let text = fs::read_to_string(cluster.admin_kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    let path = folder.join("changed.kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// A kubeconfig with a token for the server at this address.
fn token_kubeconfig(folder: &Path, server: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": { "token": "t" } }],
        "contexts": [{ "name": "main", "context": { "cluster": "c", "user": "u" } }],
    });
    let path = folder.join("kubeconfig");
    fs::write(&path, config.to_string()).unwrap();
    path
}
