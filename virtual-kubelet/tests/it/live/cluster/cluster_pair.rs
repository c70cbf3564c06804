//! Test fixture: two clusters, nodes in the lower one, and the command that presents them as a node of the upper one.

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
use super::cluster_namespace::{ClusterNamespace, PATIENCE, condition, text};

/// Label of the lower nodes.
pub(super) const SITE: &str = "site";
/// Labels of lower pods.
pub(super) const ORIGIN: &str = "multicluster.virtual-kubelet.io/origin";
pub(super) const ORIGIN_UID: &str = "multicluster.virtual-kubelet.io/origin-uid";
pub(super) const NODE: &str = "multicluster.virtual-kubelet.io/node";
/// Condition of an upper pod with the result of the lower scheduler.
pub(super) const SCHEDULED: &str = "multicluster.virtual-kubelet.io/Scheduled";
/// Taint of virtual nodes.
pub(super) const TAINT: &str = "virtual-kubelet.io/provider";
/// Mock configuration: lower pods with short delays.
const BRISK: &str = "{startDelay: 50ms, readyDelay: 20ms, stopDelay: 100ms, keepEnded: 1s}";

static LOWER: OnceCell<ControlPlane> = OnceCell::const_new();
static COMMON: OnceCell<(ClusterPair<'static>, Guardian)> = OnceCell::const_new();

/// A virtual node with its lower cluster.
pub(super) struct ClusterPair<'a> {
    pub(super) upper: &'a ControlPlane,
    pub(super) lower: &'a ControlPlane,
    /// The virtual node; also the label of its lower nodes.
    pub(super) node: String,
    /// Configuration of the provider.
    pub(super) config: Value,
    flags: Vec<String>,
    below: Option<Process>,
    above: Option<Process>,
    folder: TempDir,
}

/// The namespace of a test in both clusters.
pub(super) struct NamespacePair<'a> {
    pub(super) pair: &'a ClusterPair<'a>,
    pub(super) above: ClusterNamespace<'a>,
    pub(super) below: ClusterNamespace<'a>,
}

/// Ends processes when this process ends, because statics are never dropped.
struct Guardian(#[expect(dead_code, reason = "its input ends with us")] Child);

/// The upper cluster that most tests share.
pub(super) async fn upper() -> &'static ControlPlane {
    ControlPlane::shared_with_controllers().await
}

/// The lower cluster that most tests share. Its service range differs from that of the upper cluster.
pub(super) async fn lower() -> &'static ControlPlane {
    LOWER.get_or_init(another).await
}

/// A separate lower cluster, for a test that stops it.
pub(super) async fn another() -> ControlPlane {
    started(Options::with_controllers()).await
}

/// A lower cluster with these options.
pub(super) async fn started(mut options: Options) -> ControlPlane {
    options.extra_api_server_args.push("--service-cluster-ip-range=10.96.0.0/16".to_owned());
    ControlPlane::start(options).await.unwrap()
}

// === impl ClusterPair ===

impl ClusterPair<'static> {
    /// The virtual node that tests without special needs share.
    pub(super) async fn common() -> &'static Self {
        let made = || async {
            let pair = ClusterPair::open(upper().await, lower().await, "common", 3, json!({}), &[]).await;
            let guardian = Guardian::of(&[pair.below.as_ref().unwrap().pid(), pair.pid()]);
            (pair, guardian)
        };
        &COMMON.get_or_init(made).await.0
    }
}

impl<'a> ClusterPair<'a> {
    /// Starts lower nodes and a virtual node of this name that represents them, and waits until they are Ready. `more` is
    /// additional provider configuration.
    pub(super) async fn open(
        upper: &'a ControlPlane,
        lower: &'a ControlPlane,
        name: &str,
        nodes: u16,
        more: Value,
        flags: &[&str],
    ) -> Self {
        let node = format!("vk-{name}");
        let below = (nodes > 0).then(|| mock_nodes(lower, &node, nodes));
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
        let mut pair = Self { upper, lower, node, config, flags, below, above: None, folder };
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
        self.above = Some(run_as(self.upper.admin_kubeconfig(), &flags).start());
    }

    /// Kills the command, like the kernel's OOM killer.
    pub(super) fn kill(&mut self) {
        self.above.take().unwrap().kill();
    }

    /// Pauses its lower nodes.
    pub(super) fn stop_lower_nodes(&self) {
        self.below.as_ref().unwrap().signal(Signal::STOP);
    }

    pub(super) fn pid(&self) -> u32 {
        self.above.as_ref().unwrap().pid()
    }

    /// Standard error of the command.
    pub(super) fn log(&self) -> String {
        self.above.as_ref().map_or_else(String::new, Process::stderr)
    }

    /// One of its lower nodes.
    pub(super) fn lower_node(&self, index: u16) -> String {
        lower_node(&self.node, index)
    }

    /// Creates a namespace in the upper cluster; the lower cluster does not have it yet.
    pub(super) async fn namespace_pair(&'a self, prefix: &str) -> NamespacePair<'a> {
        let namespace = self.upper.namespace(prefix).await.unwrap();
        let (above, below) = (
            ClusterNamespace::new(self.upper, namespace.name()),
            ClusterNamespace::new(self.lower, namespace.name()),
        );
        NamespacePair { pair: self, above, below }
    }

    /// A pod that can only be scheduled to the virtual node.
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
    pub(super) async fn gets_a_certificate(&self) {
        approve(self.upper, &self.node).await;
        let path = format!("/api/v1/nodes/{}/proxy/healthz", self.node);
        let above = ClusterNamespace::new(self.upper, "default");
        eventually("the upper API server trusts the node", PATIENCE, || async {
            let output = above.try_kubectl(&["get", "--raw", &path]).await;
            if output.success() { Ok(()) } else { Err(output.stderr) }
        })
        .await;
    }
}

// === impl NamespacePair ===

impl NamespacePair<'_> {
    /// Creates the lower namespace with these labels before the provider does, and waits until it accepts pods.
    pub(super) async fn prepare_below(&self, labels: &Value) {
        let namespace = json!({"metadata": {"name": self.below.namespace, "labels": labels}});
        self.below.create("namespaces", &namespace).await;
        self.below.comes("serviceaccounts/default").await;
    }

    /// Creates an upper pod and waits until it runs in both clusters. Returns both pods.
    pub(super) async fn run(&self, pod: &Value) -> (Value, Value) {
        self.above.create("pods", pod).await;
        let name = pod["metadata"]["name"].as_str().unwrap();
        let above = self.above.runs(name).await;
        (above, self.below.runs(name).await)
    }

    /// Deletes an upper pod and waits until it is gone from both clusters.
    pub(super) async fn remove(&self, pod: &str) {
        let what = format!("pods/{pod}");
        self.above.delete(&what, None).await;
        self.above.goes(&what).await;
        self.below.goes(&what).await;
    }
}

impl Drop for NamespacePair<'_> {
    #[expect(clippy::print_stderr, reason = "what the command said, beside the panic it led to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.pair.log();
            let own: Vec<&str> = log.lines().filter(|line| line.contains(&self.above.namespace)).collect();
            let from = own.len().saturating_sub(40);
            eprintln!(
                "--- log of {} about {}\n{}",
                self.pair.node,
                self.above.namespace,
                own[from..].join("\n")
            );
        }
    }
}

// === impl Guardian ===

impl Guardian {
    fn of(pids: &[u32]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "cat >/dev/null; kill -9 \"$@\"", "sh"]).args(pids.iter().map(u32::to_string));
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }
}

/// Nodes that keep pods in memory, without the taint of virtual nodes and with this label.
pub(super) fn mock_nodes(cluster: &ControlPlane, label: &str, count: u16) -> Process {
    let address = address();
    let serving = cluster.serving_certificate(label, &[&address]).unwrap();
    let text = format!(
        "nodes: [{{count: {count}, namePattern: '{label}-lower-{{}}', portBase: {}, labels: {{{SITE}: {label}}}}}]\n\
         internalIP: {address}\n\
         providerConfig: {{cpu: 8, memory: 16Gi, pods: 200, life: {BRISK}}}\n",
        ports(count),
    );
    let mut run = run(cluster, &["--no-port", "--disable-taint", "--log-level", "warn"]).file(&text);
    let (certificate, key) =
        (run.write("tls.crt", &serving.cert_pem), run.write("tls.key", &serving.key_pem));
    run.command.arg("--tls-cert-file").arg(certificate).arg("--tls-private-key-file").arg(key);
    run.start()
}

/// A non-loopback address of this machine: the API server does not proxy to loopback addresses.
fn address() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent; this only selects the source address.
    socket.connect("192.0.2.1:9").unwrap();
    socket.local_addr().unwrap().ip().to_string()
}

/// Waits until a virtual node is not Ready with this message.
pub(super) async fn unready(cluster: &ControlPlane, node: &str, words: &str) -> Value {
    let what = format!("is not Ready, with {words:?}");
    let side = ClusterNamespace::new(cluster, "default");
    side.see(&format!("nodes/{node}"), &what, |node| {
        let ready = condition(node, "Ready");
        ready["status"] == "False" && text(&ready["message"]).contains(words)
    })
    .await
}

fn lower_node(label: &str, index: u16) -> String {
    format!("{label}-lower-{index}")
}

/// Approves the serving certificate that a node requests.
pub(super) async fn approve(cluster: &ControlPlane, node: &str) {
    let all = ClusterNamespace::new(cluster, "default");
    let name = eventually(&format!("{node} asks for a certificate"), PATIENCE, || async {
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
