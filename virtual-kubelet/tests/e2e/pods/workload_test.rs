//! Test fixture: a namespace with its own nodes. The real command runs the nodes, and their pods are in this process behind a
//! socket, so tests can compare the API server with the backend.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, File},
    net::{Ipv6Addr, TcpListener},
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{Api, api::ListParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinSet};
use vk_provider_mock::{
    PodHost, serve,
    simulator::{Reply, Request},
};
use vk_testing::{ControlPlane, Output, Process, eventually, kubectl};

use super::backend_log::BackendLog;

/// Generous, because test machines are busy. Tests that need speed measure it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);
/// The taint of virtual nodes.
pub(crate) const TAINT: &str = "virtual-kubelet.io/provider";
/// Mock configuration: pods with short delays to start, get ready and stop.
pub(crate) const BRISK: &str = "{startDelay: 50ms, readyDelay: 50ms, stopDelay: 200ms, keepEnded: 1s}";
/// Mock configuration: pods that stop at once, so that a stopping pod is not counted as ready.
pub(crate) const CURT: &str = "{startDelay: 50ms, readyDelay: 50ms, keepEnded: 1s}";

pub(crate) struct WorkloadTest<'a> {
    pub(crate) cluster: &'a ControlPlane,
    /// The namespace, which is also the label of its nodes.
    pub(crate) name: String,
    pub(crate) nodes: Vec<String>,
    pub(crate) pods: Api<Pod>,
    /// Log of the backend.
    pub(crate) log: BackendLog,
    life: String,
    port: u16,
    host: PodHost,
    process: Option<Process>,
    folder: TempDir,
    /// Tasks that serve the backend to each node.
    plugs: Vec<JoinSet<()>>,
    _chroniclers: JoinSet<()>,
}

/// State of a pod on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodSummary {
    phase: String,
    containers: BTreeMap<String, (Option<String>, i32)>,
}

// === impl WorkloadTest ===

impl<'a> WorkloadTest<'a> {
    /// A namespace with Ready nodes.
    pub(crate) async fn open(cluster: &'a ControlPlane, prefix: &str, nodes: usize, life: &str) -> Self {
        let name = cluster.namespace(prefix).await.unwrap().name().to_owned();
        let nodes: Vec<String> = (0..nodes).map(|index| format!("{name}-{index}")).collect();
        let folder = TempDir::new().unwrap();
        let host = PodHost::default();
        let log = BackendLog::default();
        let mut chroniclers = JoinSet::new();
        for node in &nodes {
            chroniclers.spawn(log.clone().write(host.changes(node)));
        }
        let mut test = Self {
            pods: Api::namespaced(cluster.admin().unwrap(), &name),
            port: ports(u16::try_from(nodes.len()).unwrap()),
            life: life.to_owned(),
            process: None,
            plugs: nodes.iter().map(|_| JoinSet::new()).collect(),
            _chroniclers: chroniclers,
            cluster,
            name,
            nodes,
            log,
            host,
            folder,
        };
        for index in 0..test.nodes.len() {
            test.plug_in(index);
        }
        test.start().await;
        test
    }

    /// Connects a node with the backend.
    pub(crate) fn plug_in(&mut self, index: usize) {
        let listener = UnixListener::bind(self.socket(index)).unwrap();
        let serving = serve(listener, self.host.clone());
        self.plugs[index].spawn(async move { serving.await.unwrap() });
    }

    /// Disconnects a node from the backend; its pods keep running.
    pub(crate) async fn pull_out(&mut self, index: usize) {
        self.plugs[index].shutdown().await;
        fs::remove_file(self.socket(index)).unwrap();
    }

    fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{index}.sock"))
    }

    /// Starts the command and waits until its nodes are Ready.
    async fn start(&mut self) {
        let file = self.folder.path().join("vk.yaml");
        let (name, count, port, life) = (&self.name, self.nodes.len(), self.port, &self.life);
        let mut text = format!(
            "provider: mock\nmetricsAddr: 'off'\npingInterval: 2s\nlog: {{level: warn}}\nshutdown: {{node: delete}}\ntls: {{request: false}}\n\
             nodes:\n- {{count: {count}, namePattern: '{name}-{{}}', portBase: {port}, labels: {{test: {name}}}}}\n\
             providerConfig:\n",
        );
        for (index, node) in self.nodes.iter().enumerate() {
            let socket = self.socket(index).display().to_string();
            let size = "cpu: 2000, memory: 2000Gi, pods: 2000";
            writeln!(text, "  {node}: {{backend: {socket}, {size}, life: {life}}}").unwrap();
        }
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_virtual-kubelet"));
        command.arg("run").arg("--config").arg(&file).env_clear().env("HOME", self.folder.path());
        command.arg("--kubeconfig").arg(self.cluster.admin_kubeconfig());
        let log = File::options().append(true).create(true).open(self.folder.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.process = Some(Process::spawn(&mut command).unwrap());
        for index in 0..self.nodes.len() {
            self.there(index).await;
        }
    }

    /// Waits until a node exists and is Ready.
    pub(crate) async fn there(&self, index: usize) {
        let node = &self.nodes[index];
        eventually("the node is Ready", PATIENCE, || async {
            let found = kubectl(self.cluster, ["wait", "--for=condition=Ready", "node", node]).await.unwrap();
            if found.success() { Ok(()) } else { Err(found.stderr) }
        })
        .await;
    }

    /// Kills the process and starts the next one.
    pub(crate) async fn restart(&mut self) {
        self.process.take().unwrap().kill().unwrap();
        self.start().await;
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
        let mut all = vec!["--namespace", self.name.as_str()];
        all.extend(words);
        kubectl(self.cluster, all).await.unwrap()
    }

    /// Applies an object with kubectl.
    pub(crate) async fn apply(&self, object: &Value) {
        self.hand_in("apply", object).await;
    }

    /// Creates an object with kubectl, without the last-applied annotation.
    pub(crate) async fn create(&self, object: &Value) {
        self.hand_in("create", object).await;
    }

    async fn hand_in(&self, verb: &str, object: &Value) {
        let path = self.folder.path().join("object.json");
        fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&[verb, "-f", path.to_str().unwrap()]).await;
    }

    /// An object of the namespace.
    pub(crate) async fn get(&self, what: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", what, "--output=json"]).await).unwrap()
    }

    /// Waits until an object of the namespace satisfies `check`.
    pub(crate) async fn see(&self, what: &str, wish: &str, check: impl Fn(&Value) -> bool) -> Value {
        let check = &check;
        eventually(&format!("{what}: {wish}"), PATIENCE, || async move {
            let found = self.get(what).await;
            if check(&found) { Ok(found) } else { Err(found["status"].to_string()) }
        })
        .await
    }

    /// A pod template for the nodes of this test, with these annotations for the mock.
    pub(crate) fn template(&self, app: &str, script: &[(&str, &str)]) -> Value {
        let annotations: BTreeMap<String, &str> =
            script.iter().map(|(key, value)| (format!("mock.virtual-kubelet.io/{key}"), *value)).collect();
        json!({
            "metadata": {"labels": {"app": app}, "annotations": annotations},
            "spec": {
                "nodeSelector": {"test": self.name},
                "tolerations": [{"key": TAINT, "operator": "Exists"}],
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "example.com/app:1"}],
            },
        })
    }

    /// A pod without a controller, bound to the first node.
    pub(crate) fn pod(&self, name: &str, script: &[(&str, &str)]) -> Value {
        let mut pod = self.template(name, script);
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = name.into();
        pod["spec"]["nodeName"] = self.nodes[0].as_str().into();
        pod
    }

    /// A Deployment with this number of replicas.
    pub(crate) fn deployment(&self, app: &str, replicas: usize) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": app}},
                "template": self.template(app, &[]),
            },
        })
    }

    /// The pods of the API server by name.
    pub(crate) async fn list(&self) -> BTreeMap<String, Pod> {
        let list = self.pods.list(&ListParams::default()).await.unwrap();
        list.items.into_iter().map(|pod| (pod.metadata.name.clone().unwrap(), pod)).collect()
    }

    /// UIDs of running pods with their container instances.
    pub(crate) async fn running(&self) -> BTreeMap<String, String> {
        let pods = self.list().await.into_values();
        let running = pods.filter(|pod| known(pod.status.as_ref()).phase == "Running");
        running.map(|pod| (pod.metadata.uid.unwrap(), known(pod.status.as_ref()).instances())).collect()
    }

    /// Waits until API server and backend have the same `count` pods in the same state, and none is being deleted.
    #[track_caller]
    pub(crate) fn agreed(&self, count: usize) -> impl Future<Output = ()> + '_ {
        eventually("API server and backend agree", PATIENCE, move || async move {
            let seen = self.agree().await?;
            if seen == count { Ok(()) } else { Err(format!("they agree on {seen} pods, not on {count}")) }
        })
    }

    async fn agree(&self) -> Result<usize, String> {
        let list = self.pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let leaving = list.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
        let api: BTreeMap<String, PodSummary> = list
            .items
            .into_iter()
            .map(|pod| (pod.metadata.uid.unwrap(), known(pod.status.as_ref())))
            .collect();
        let backend = self.in_backend();
        if api == backend && leaving == 0 {
            return Ok(api.len());
        }
        let uids: BTreeSet<&String> = api.keys().chain(backend.keys()).collect();
        let differing = uids.into_iter().filter(|uid| api.get(*uid) != backend.get(*uid));
        let some: Vec<String> = differing
            .map(|uid| {
                format!("{uid}: {:?} in the API server, {:?} in the backend", api.get(uid), backend.get(uid))
            })
            .collect();
        Err(format!("{leaving} are being deleted; {} differ: {:#?}", some.len(), &some[..some.len().min(3)]))
    }

    fn in_backend(&self) -> BTreeMap<String, PodSummary> {
        let of = |node: &String| match self.host.apply(Request::List { node: node.as_str().into() }) {
            Ok(Reply::Pods(pods)) => pods,
            other => panic!("not a list: {other:?}"),
        };
        let pods = self.nodes.iter().flat_map(of);
        pods.map(|listed| (listed.pod.uid.to_string(), known(Some(&listed.status)))).collect()
    }

    /// Number of pods that the backend has created so far; fails if one was created twice.
    #[track_caller]
    pub(crate) fn created_once(&self) -> usize {
        let Ok(Reply::Journal(journal)) = self.host.apply(Request::Journal) else { panic!("not a journal") };
        let twice: Vec<_> = journal.iter().filter(|(_, creations)| **creations != 1).collect();
        assert!(twice.is_empty(), "created more than once: {twice:?}");
        journal.len()
    }

    /// Waits until nothing is left on either side and stops the process. Returns the total number of pods.
    pub(crate) async fn close(mut self) -> usize {
        self.agreed(0).await;
        let overlaps = self.log.overlaps();
        assert!(overlaps.is_empty(), "two pods of one name at one time: {overlaps:?}");
        let mut process = self.process.take().unwrap();
        assert_eq!(process.ended().unwrap(), None, "the process has ended by itself");
        kill_process(Pid::from_raw(process.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
        eventually("the process ends", PATIENCE, || {
            let ended = process.ended().unwrap();
            async move { ended.ok_or("it runs") }
        })
        .await;
        self.created_once()
    }
}

impl Drop for WorkloadTest<'_> {
    #[expect(clippy::print_stderr, reason = "what the command said, beside the panic it led to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- log of {}\n{}", self.name, lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

// === impl PodSummary ===

impl PodSummary {
    /// The instances of all containers as text.
    fn instances(&self) -> String {
        format!("{:?}", self.containers)
    }
}

fn known(status: Option<&PodStatus>) -> PodSummary {
    let status = status.cloned().unwrap_or_default();
    let containers = status.container_statuses.into_iter().flatten();
    PodSummary {
        phase: status.phase.unwrap_or_default(),
        containers: containers.map(|one| (one.name, (one.container_id, one.restart_count))).collect(),
    }
}

/// The first of several consecutive free ports that no other test gets. Outside the ranges of control planes and other tests.
fn ports(count: u16) -> u16 {
    const FIRST: u16 = 19_000;
    const RANGE: u16 = 900;
    static USED: AtomicU16 = AtomicU16::new(0);
    // A concurrent run starts at another port.
    let begin = u16::try_from(std::process::id() % u32::from(RANGE)).unwrap();
    loop {
        let first = FIRST + (begin + USED.fetch_add(count, Ordering::Relaxed)) % RANGE;
        if (first..first + count).all(|port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok()) {
            return first;
        }
    }
}
