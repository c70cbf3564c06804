//! Runs the real command against a real control plane, and against servers that are none.

mod admin;
mod bad;
#[path = "../e2e/kubectl/siege.rs"]
mod besiegers;
mod bootstrap;
#[path = "../e2e/pods/chronicle.rs"]
#[allow(dead_code, reason = "the long tests use all of it")]
mod chronicle;
mod cluster;
mod configuration;
mod crash;
mod credentials;
mod cri;
mod dev;
mod fleet;
mod kubelet;
mod leader;
mod liar;
mod life;
mod local;
mod logs;
mod matrix;
mod original;
mod place;
mod provider;
mod refused;
mod rights;
mod rivals;
#[path = "../e2e/pods/site.rs"]
#[allow(dead_code, reason = "the long tests use all of it")]
mod site;
mod workload;

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
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_kube::{Client, Metrics, Objects};
use vk_testing::{ControlPlane, eventually};

use crate::{Outcome, Run, vk};

/// Long enough for a busy machine; nothing here takes more than seconds.
const SOON: Duration = Duration::from_secs(30);

/// A command that runs in the background. It does not outlive the test.
struct Process {
    child: Child,
    folder: TempDir,
}

// === impl Run ===

impl Run {
    /// Runs it in the background.
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
        kill(Pid::from_raw(self.pid().try_into().unwrap()), signal).unwrap();
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// As the kernel does it when memory is short.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended by itself.
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

    /// Asks it to end, and waits until it has.
    async fn stop(&mut self, limit: Duration) -> Outcome {
        self.signal(Signal::SIGTERM);
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
    /// It ended with this code and told why in one line that holds all of these words. Log lines do not count.
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
    // In the folder of the run: nothing of it is left for the next one.
    let mut all = vec!["run", "--provider", "mock", "--metrics-addr", "off", "--state-dir", "state"];
    // Variables and files that say something else about the port are to be heard.
    if !flags.contains(&"--no-port") {
        all.extend(["--port", &port]);
    }
    all.extend(["--kubeconfig", kubeconfig.to_str().unwrap()]);
    all.extend(flags.iter().filter(|flag| **flag != "--no-port"));
    vk(&all)
}

/// The first of so many free ports in a row, which no other test gets. Below the range from which the kernel takes ports
/// for outgoing connections, and below that of the control planes.
fn ports(count: u16) -> u16 {
    const FIRST: u16 = 11_000;
    const RANGE: u16 = 8_000;
    static USED: AtomicU16 = AtomicU16::new(0);
    // Another run at the same time begins elsewhere.
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

/// A node as it is now.
async fn node(cluster: &ControlPlane, name: &str) -> Value {
    json!(nodes(cluster).get(name).await.unwrap())
}

/// Whether there is a node of this name.
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

/// The port that a node names for its kubelet API.
fn kubelet_port(node: &Value) -> u64 {
    node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap()
}

/// The status code and the rest of the answer to a GET.
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

/// Waits until a GET is answered with this code.
async fn answers(port: u16, path: &str, code: u16, limit: Duration) -> String {
    eventually(&format!("{path} is answered with {code}"), limit, || async {
        let (seen, answer) = get(port, path)?;
        if seen == code { Ok(answer) } else { Err(answer) }
    })
    .await
}

/// Writes a kubeconfig that is the administrator's but for these changes.
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
