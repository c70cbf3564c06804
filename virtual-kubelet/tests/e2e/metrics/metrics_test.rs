//! Test fixture: a cluster with a virtual node and the real metrics-server, which reads the node with its own identity and
//! verifies its certificate.

use std::{
    fs::{self, File},
    net::{Ipv6Addr, TcpListener},
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use k8s_openapi::ByteString;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{ControlPlane, Output, Process, control_plane::Options, eventually, kubectl};

/// metrics-server scrapes every ten seconds and needs two samples for a rate.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);
const SERVER: &str = "metrics-server";

pub(crate) struct MetricsTest {
    pub(crate) node: String,
    namespace: String,
    command: Process,
    _server: Process,
    cluster: ControlPlane,
    folder: TempDir,
}

// === impl MetricsTest ===

impl MetricsTest {
    /// A namespace with a node whose certificate is approved and that metrics-server reads.
    pub(crate) async fn open(name: &str) -> Self {
        let program = metrics_server();
        let cluster = ControlPlane::start(options()).await.unwrap();
        let folder = TempDir::new().unwrap();
        let namespace = cluster.namespace(name).await.unwrap().name().to_owned();
        let node = format!("{name}-node");
        let command = start_node(&cluster, &folder, &node);
        let (port, token) = install(&cluster, &folder).await;
        let server = start_server(&cluster, &folder, program, port, &token);
        let place = Self { node, namespace, command, _server: server, cluster, folder };
        place.become_trusted().await;
        place
    }

    /// Checks that the node is not read with a self-signed certificate, then approves the requested one.
    async fn become_trusted(&self) {
        until("metrics-server refuses a certificate that is not the cluster's", || async {
            let log = self.log("server");
            let told = |line: &&str| line.contains("Failed to scrape node") && line.contains(&self.node);
            let line = log.lines().rfind(told).unwrap_or_default();
            if line.contains("certificate signed by unknown authority") {
                Ok(())
            } else {
                Err(line.to_owned())
            }
        })
        .await;
        let request = until("the node asks for a certificate", || async {
            let list = self.kubectl(&["get", "csr", "--output=json"]).await;
            let list: Value = serde_json::from_str(&list).unwrap();
            let mut all = list["items"].as_array().into_iter().flatten();
            let own = all.find(|request| {
                request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
                    && request["spec"]["username"] == format!("system:node:{}", self.node)
            });
            let name = own.and_then(|request| request["metadata"]["name"].as_str().map(str::to_owned));
            name.ok_or_else(|| list.to_string())
        })
        .await;
        self.kubectl(&["certificate", "approve", &request]).await;
        until("metrics-server has figures of the node", || async {
            let path = format!("/apis/metrics.k8s.io/v1beta1/nodes/{}", self.node);
            let output = self.try_kubectl(&["get", "--raw", &path]).await;
            if output.success() { Ok(()) } else { Err(format!("{}\n{}", output.stderr, self.tail("server"))) }
        })
        .await;
    }

    /// Runs kubectl in the namespace. It must succeed.
    #[track_caller]
    pub(crate) fn kubectl<'c>(&'c self, words: &'c [&'c str]) -> impl Future<Output = String> + 'c {
        let caller = std::panic::Location::caller();
        async move {
            let output = self.try_kubectl(words).await;
            assert!(output.success(), "kubectl {words:?} at {caller}: {output:?}");
            output.stdout
        }
    }

    /// Runs kubectl in the namespace.
    pub(crate) async fn try_kubectl(&self, words: &[&str]) -> Output {
        kubectl(&self.cluster, [&["--namespace", &self.namespace], words].concat()).await.unwrap()
    }

    /// Applies an object with kubectl.
    pub(crate) async fn apply(&self, object: &Value) {
        let path = self.folder.path().join("object.json");
        fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "-f", path.to_str().unwrap()]).await;
    }

    /// Waits until an object of the namespace satisfies `check`.
    pub(crate) async fn see(&self, what: &str, wish: &str, check: impl Fn(&Value) -> bool) -> Value {
        let check = &check;
        until(&format!("{what}: {wish}"), || async move {
            let found = self.kubectl(&["get", what, "--output=json"]).await;
            let found: Value = serde_json::from_str(&found).unwrap();
            if check(&found) { Ok(found) } else { Err(found["status"].to_string()) }
        })
        .await
    }

    /// A pod template with requests of 200m and the given usage per container.
    pub(crate) fn template(app: &str, cpu: &str, memory: &str) -> Value {
        json!({
            "metadata": {
                "labels": {"app": app},
                "annotations": {"mock.virtual-kubelet.io/cpu": cpu, "mock.virtual-kubelet.io/memory": memory},
            },
            "spec": {
                "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": "200m"}},
                }],
            },
        })
    }

    /// Puts load on all current pods of an application.
    pub(crate) async fn load(&self, app: &str, cpu: &str) {
        let (selector, load) = (format!("app={app}"), format!("mock.virtual-kubelet.io/cpu={cpu}"));
        self.kubectl(&["annotate", "pods", "--selector", &selector, &load, "--overwrite"]).await;
    }

    /// Number of pods of an application on the node.
    pub(crate) async fn on_node(&self, app: &str) -> usize {
        let (selector, node) = (format!("app={app}"), format!("spec.nodeName={}", self.node));
        let words = ["get", "pods", "--selector", &selector, "--field-selector", &node, "--output=name"];
        self.kubectl(&words).await.lines().count()
    }

    /// Stops the command gracefully.
    pub(crate) async fn close(mut self) {
        let process = &mut self.command;
        assert_eq!(process.ended().unwrap(), None, "the command has ended by itself");
        kill_process(Pid::from_raw(process.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
        let status = eventually("the command ends", PATIENCE, || {
            let ended = process.ended().unwrap();
            async move { ended.ok_or("it runs") }
        })
        .await;
        assert!(status.success(), "{status}");
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name).with_extension("log")).unwrap_or_default()
    }

    fn tail(&self, name: &str) -> String {
        let log = self.log(name);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for MetricsTest {
    #[expect(clippy::print_stderr, reason = "what both said, beside the panic it led to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["node", "server"] {
                eprintln!("--- log of the {name}\n{}", self.tail(name));
            }
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until<T, F, Fut>(what: &str, check: F) -> impl Future<Output = T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    eventually(what, PATIENCE, check)
}

/// With its defaults the autoscaler would take more than ten minutes to scale up and down.
fn options() -> Options {
    let flags = [
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
        "--horizontal-pod-autoscaler-downscale-stabilization=1s",
    ];
    Options { extra_controller_manager_args: flags.map(str::to_owned).into(), ..Options::with_controllers() }
}

/// The program, built if needed.
fn metrics_server() -> PathBuf {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../dev/metrics-server/build");
    let output = Command::new(build).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "dev/metrics-server/build failed: it says why above");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// The command as a node, with only the certificate that it requests.
fn start_node(cluster: &ControlPlane, folder: &TempDir, node: &str) -> Process {
    let file = |name: &str| folder.path().join(name);
    cluster
        .write_kubeconfig(&file("node.kubeconfig"), &format!("system:node:{node}"), &["system:nodes"])
        .unwrap();
    fs::write(file("ca.crt"), cluster.ca_pem()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"));
    command
        .args(["run", "--provider", "mock", "--metrics-addr", "off", "--nodename", node])
        .args(["--internal-ip", "127.0.0.1", "--port", &port().to_string()])
        .arg("--state-dir")
        .arg(file("state"))
        .arg("--client-verify-ca")
        .arg(file("ca.crt"))
        .arg("--kubeconfig")
        .arg(file("node.kubeconfig"))
        .env_clear()
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(file("node.log")).unwrap());
    Process::spawn(&mut command).unwrap()
}

/// Installs metrics-server's manifests without the program; returns its port and token.
async fn install(cluster: &ControlPlane, folder: &TempDir) -> (u16, String) {
    let port = port();
    let rbac = "rbac.authorization.k8s.io";
    let account = json!([{"kind": "ServiceAccount", "name": SERVER, "namespace": "kube-system"}]);
    let binding = |kind: &str, name: &str, role_kind: &str, role: &str| {
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": kind,
            "metadata": {"name": name, "namespace": (kind == "RoleBinding").then_some("kube-system")},
            "roleRef": {"apiGroup": rbac, "kind": role_kind, "name": role},
            "subjects": account,
        })
    };
    let role = "system:metrics-server";
    let objects = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVER, "namespace": "kube-system"}}),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": role},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
            ],
        }),
        binding("ClusterRoleBinding", role, "ClusterRole", role),
        binding("ClusterRoleBinding", "metrics-server:delegator", "ClusterRole", "system:auth-delegator"),
        binding("RoleBinding", "metrics-server:reader", "Role", "extension-apiserver-authentication-reader"),
        // It runs outside the cluster, on this machine.
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVER, "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "group": "metrics.k8s.io", "version": "v1beta1",
                "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": {"name": SERVER, "namespace": "kube-system", "port": port},
                "caBundle": ByteString(cluster.ca_pem().as_bytes().to_vec()),
            },
        }),
    ];
    let path = folder.path().join("metrics-server.json");
    fs::write(&path, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    let good = async |words: &[&str]| {
        let output = kubectl(cluster, words).await.unwrap();
        assert!(output.success(), "kubectl {words:?}: {output:?}");
        output.stdout
    };
    good(&["apply", "-f", path.to_str().unwrap()]).await;
    let token = good(&["--namespace", "kube-system", "create", "token", SERVER]).await;
    (port, token.trim().to_owned())
}

/// metrics-server with certificate verification of the nodes.
fn start_server(
    cluster: &ControlPlane,
    folder: &TempDir,
    program: PathBuf,
    port: u16,
    token: &str,
) -> Process {
    let file = |name: &str| folder.path().join(name);
    // The name that the API server uses for it.
    let name = format!("{SERVER}.kube-system.svc");
    let pair = cluster.serving_certificate(SERVER, &[&name, "localhost"]).unwrap();
    fs::write(file("server.crt"), &pair.cert_pem).unwrap();
    fs::write(file("server.key"), &pair.key_pem).unwrap();
    cluster.write_token_kubeconfig(&file("server.kubeconfig"), token).unwrap();
    let mut command = Command::new(program);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", file("server.kubeconfig").display()));
    }
    command
        .arg(format!("--tls-cert-file={}", file("server.crt").display()))
        .arg(format!("--tls-private-key-file={}", file("server.key").display()))
        .arg(format!("--kubelet-certificate-authority={}", file("ca.crt").display()))
        .args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
        .args(["--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port"])
        // The minimum; a request must be faster.
        .args(["--metric-resolution=10s", "--kubelet-request-timeout=5s", "--v=2"])
        .env_clear()
        .env("HOME", folder.path())
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(file("server.log")).unwrap());
    Process::spawn(&mut command).unwrap()
}

/// A free port that no other test gets. Outside the ranges of control planes, other tests and outgoing connections.
fn port() -> u16 {
    const FIRST: u16 = 31_200;
    const RANGE: u16 = 800;
    static USED: AtomicU16 = AtomicU16::new(0);
    // A concurrent run starts at another port.
    let begin = u16::try_from(std::process::id() % u32::from(RANGE)).unwrap();
    loop {
        let port = FIRST + (begin + USED.fetch_add(1, Ordering::Relaxed)) % RANGE;
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
