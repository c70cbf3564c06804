//! Two clusters, lower nodes, and the command that makes the lower cluster a node of the upper one.

use std::{
    fs,
    net::UdpSocket,
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use super::super::{Process, becomes_ready, ports, run, run_as};
use super::namespace_client::{NamespaceClient, TIMEOUT, condition, text};

/// The label of the lower nodes of a pair.
pub(super) const SITE: &str = "site";
/// Labels of lower pods.
pub(super) const ORIGIN: &str = "multicluster.virtual-kubelet.io/origin";
pub(super) const ORIGIN_UID: &str = "multicluster.virtual-kubelet.io/origin-uid";
pub(super) const NODE: &str = "multicluster.virtual-kubelet.io/node";
/// The condition with the decision of the lower scheduler.
pub(super) const SCHEDULED: &str = "multicluster.virtual-kubelet.io/Scheduled";
/// The taint of virtual nodes.
pub(super) const TAINT: &str = "virtual-kubelet.io/provider";
/// Lower pods with short delays.
const FAST_PODS: &str = "{startDelay: 50ms, readyDelay: 20ms, stopDelay: 100ms, keepEnded: 1s}";

static LOWER: OnceCell<ControlPlane> = OnceCell::const_new();
static COMMON: OnceCell<(ClusterPair<'static>, ProcessReaper)> = OnceCell::const_new();

/// A virtual node and its lower nodes.
pub(super) struct ClusterPair<'a> {
    pub(super) upper: &'a ControlPlane,
    pub(super) lower: &'a ControlPlane,
    /// The name of the virtual node, which is also the label of its lower nodes.
    pub(super) node: String,
    /// The configuration of the provider.
    pub(super) config: Value,
    flags: Vec<String>,
    lower_nodes: Option<Process>,
    process: Option<Process>,
    folder: TempDir,
}

/// The namespace of a test, with the same name in both clusters.
pub(super) struct TestNamespace<'a> {
    pub(super) pair: &'a ClusterPair<'a>,
    pub(super) upper: NamespaceClient<'a>,
    pub(super) lower: NamespaceClient<'a>,
}

/// Kills processes when this process ends in any way, because statics are never dropped.
pub(super) struct ProcessReaper(#[expect(dead_code, reason = "its input ends with us")] Child);

/// The upper cluster that most tests share.
pub(super) async fn upper() -> &'static ControlPlane {
    ControlPlane::shared_with_controllers().await
}

/// The lower cluster that most tests share. Its Service range differs from that of the upper cluster.
pub(super) async fn lower() -> &'static ControlPlane {
    LOWER.get_or_init(start_lower).await
}

/// Another lower cluster, for a test that stops it.
pub(super) async fn start_lower() -> ControlPlane {
    start_lower_with(Options::with_controllers()).await
}

/// Starts a lower cluster with these options.
pub(super) async fn start_lower_with(mut options: Options) -> ControlPlane {
    options.extra_api_server_args.push("--service-cluster-ip-range=10.96.0.0/16".to_owned());
    ControlPlane::start(options).await.unwrap()
}

// === impl ClusterPair ===

impl ClusterPair<'static> {
    /// The virtual node for tests without special needs.
    pub(super) async fn common() -> &'static Self {
        let made = || async {
            let pair = ClusterPair::open(upper().await, lower().await, "common", 3, json!({}), &[]).await;
            let reaper = ProcessReaper::of(&[pair.lower_nodes.as_ref().unwrap().pid(), pair.pid()]);
            (pair, reaper)
        };
        &COMMON.get_or_init(made).await.0
    }
}

impl<'a> ClusterPair<'a> {
    /// Starts lower nodes and a virtual node with this name, and waits until they are Ready. `more` extends the configuration of the
    /// provider.
    pub(super) async fn open(
        upper: &'a ControlPlane,
        lower: &'a ControlPlane,
        name: &str,
        nodes: u16,
        more: Value,
        flags: &[&str],
    ) -> Self {
        let node = format!("vk-{name}");
        let lower_nodes = (nodes > 0).then(|| mock_nodes(lower, &node, nodes));
        for index in 0..nodes {
            becomes_ready(lower, &lower_node(&node, index)).await;
        }
        let mut config = json!({
            "kubeconfig": lower.admin_kubeconfig(),
            "virtualNodes": true,
            "nodeSelector": {SITE: node},
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let folder = TempDir::new().unwrap();
        let mut pair = Self { upper, lower, node, config, flags, lower_nodes, process: None, folder };
        pair.start().await;
        pair
    }

    /// Starts the command and waits until the node is Ready.
    pub(super) async fn start(&mut self) {
        self.launch();
        becomes_ready(self.upper, &self.node).await;
    }

    /// Starts the command.
    pub(super) fn launch(&mut self) {
        let config = self.folder.path().join("provider.json");
        fs::write(&config, self.config.to_string()).unwrap();
        let mut flags = vec![
            "--provider",
            "cluster",
            "--nodename",
            &self.node,
            "--provider-config",
            config.to_str().unwrap(),
            "--ping-interval",
            "1s",
            "--ping-timeout",
            "2s",
        ];
        flags.extend(self.flags.iter().map(String::as_str));
        self.process = Some(run_as(self.upper.admin_kubeconfig(), &flags).start());
    }

    /// Kills the command like the OOM killer.
    pub(super) fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    /// Suspends the command: it hangs.
    pub(super) fn suspend(&self) {
        self.process.as_ref().unwrap().signal(Signal::STOP);
    }

    /// Suspends the lower nodes.
    pub(super) fn stop_lower_nodes(&self) {
        self.lower_nodes.as_ref().unwrap().signal(Signal::STOP);
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid()
    }

    /// The log of the command.
    pub(super) fn log(&self) -> String {
        self.process.as_ref().map_or_else(String::new, Process::stderr)
    }

    /// The name of a lower node.
    pub(super) fn lower_node(&self, index: u16) -> String {
        lower_node(&self.node, index)
    }

    /// Creates an upper namespace, which does not exist in the lower cluster yet.
    pub(super) async fn test_namespace(&'a self, prefix: &str) -> TestNamespace<'a> {
        let namespace = self.upper.namespace(prefix).await.unwrap();
        let upper = NamespaceClient::new(self.upper, namespace.name());
        let lower = NamespaceClient::new(self.lower, namespace.name());
        TestNamespace { pair: self, upper, lower }
    }

    /// A pod that the scheduler can only place on the virtual node.
    pub(super) fn pod(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": self.pod_spec(),
        })
    }

    /// The spec of such a pod.
    pub(super) fn pod_spec(&self) -> Value {
        json!({
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        })
    }

    /// Approves the certificate that the command requests, and waits until the upper API server can connect.
    pub(super) async fn approve_certificate(&self) {
        approve(self.upper, &self.node).await;
        let path = format!("/api/v1/nodes/{}/proxy/healthz", self.node);
        let above = NamespaceClient::new(self.upper, "default");
        eventually("the upper API server trusts the node", TIMEOUT, || async {
            let output = above.try_kubectl(&["get", "--raw", &path]).await;
            if output.success() { Ok(()) } else { Err(output.stderr) }
        })
        .await;
    }
}

// === impl TestNamespace ===

impl TestNamespace<'_> {
    /// Creates the lower namespace before the provider does, with these labels, and waits until it accepts pods.
    pub(super) async fn prepare_lower(&self, labels: &Value) {
        let namespace = json!({"metadata": {"name": self.lower.namespace, "labels": labels}});
        self.lower.create("namespaces", &namespace).await;
        self.lower.wait_exists("serviceaccounts/default").await;
    }

    /// Creates an upper pod and waits until it runs in both clusters. Returns the upper and the lower pod.
    pub(super) async fn run(&self, pod: &Value) -> (Value, Value) {
        self.upper.create("pods", pod).await;
        let name = pod["metadata"]["name"].as_str().unwrap();
        let above = self.upper.wait_running(name).await;
        (above, self.lower.wait_running(name).await)
    }

    /// Deletes an upper pod and waits until it is gone from both clusters.
    pub(super) async fn remove(&self, pod: &str) {
        let what = format!("pods/{pod}");
        self.upper.delete(&what, None).await;
        self.upper.wait_deleted(&what).await;
        self.lower.wait_deleted(&what).await;
    }
}

impl Drop for TestNamespace<'_> {
    #[expect(clippy::print_stderr, reason = "what the command said, beside the panic it led to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.pair.log();
            let own: Vec<&str> = log.lines().filter(|line| line.contains(&self.upper.namespace)).collect();
            let from = own.len().saturating_sub(40);
            eprintln!(
                "--- log of {} about {}\n{}",
                self.pair.node,
                self.upper.namespace,
                own[from..].join("\n")
            );
        }
    }
}

// === impl ProcessReaper ===

impl ProcessReaper {
    pub(super) fn of(pids: &[u32]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "cat >/dev/null; kill -9 \"$@\"", "sh"]).args(pids.iter().map(u32::to_string));
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }
}

/// Starts nodes that keep pods in memory, without the taint of virtual nodes and with this label.
pub(super) fn mock_nodes(cluster: &ControlPlane, label: &str, count: u16) -> Process {
    named_mock_nodes(cluster, label, &format!("{label}-lower"), count)
}

/// Starts such nodes, with names that begin with `prefix`.
pub(super) fn named_mock_nodes(cluster: &ControlPlane, label: &str, prefix: &str, count: u16) -> Process {
    let address = address();
    let serving = cluster.serving_certificate(prefix, &[&address]).unwrap();
    let text = format!(
        "nodes: [{{count: {count}, namePattern: '{prefix}-{{}}', portBase: {}, labels: {{{SITE}: {label}}}}}]\n\
         internalIP: {address}\n\
         providerConfig: {{cpu: 8, memory: 16Gi, pods: 200, life: {FAST_PODS}}}\n",
        ports(count),
    );
    let mut run = run(cluster, &["--no-port", "--disable-taint", "--log-level", "warn"]).file(&text);
    let (certificate, key) =
        (run.write("tls.crt", &serving.cert_pem), run.write("tls.key", &serving.key_pem));
    run.command.arg("--tls-cert-file").arg(certificate).arg("--tls-private-key-file").arg(key);
    run.start()
}

/// A non-loopback address of this machine, because API servers do not proxy to loopback addresses of nodes.
fn address() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent: this only chooses the source address.
    socket.connect("192.0.2.1:9").unwrap();
    socket.local_addr().unwrap().ip().to_string()
}

/// Waits until a virtual node is not Ready with this text in its message.
pub(super) async fn unready(cluster: &ControlPlane, node: &str, words: &str) -> Value {
    let what = format!("is not Ready, with {words:?}");
    let client = NamespaceClient::new(cluster, "default");
    client
        .wait_for(&format!("nodes/{node}"), &what, |node| {
            let ready = condition(node, "Ready");
            ready["status"] == "False" && text(&ready["message"]).contains(words)
        })
        .await
}

fn lower_node(label: &str, index: u16) -> String {
    format!("{label}-lower-{index}")
}

/// Approves the serving certificate that a node requests, which is manual in every cluster.
pub(super) async fn approve(cluster: &ControlPlane, node: &str) {
    let all = NamespaceClient::new(cluster, "default");
    let name = eventually(&format!("{node} asks for a certificate"), TIMEOUT, || async {
        let own = |one: &Value| {
            one["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
                && one["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&format!("{node}-")))
        };
        let list = all.list("certificatesigningrequests").await;
        let found = list.iter().rfind(|one| own(one)).map(|one| one["metadata"]["name"].clone());
        found.and_then(|name| name.as_str().map(str::to_owned)).ok_or_else(|| format!("{list:?}"))
    })
    .await;
    all.kubectl(&["certificate", "approve", &name]).await;
}
