//! Test fixture: the command as a node with real containers, isolated on this machine, at a real control plane.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use vk_testing::{
    ControlPlane, Process, eventually,
    host::Host,
    kubectl,
    kubectl_matrix::{self as matrix, KubectlSession, Target},
};

use super::{SOON, ready};
use crate::Outcome;

pub(super) const IMAGE: &str = "vk.test/busybox:1";
/// Generous, for many containers on a busy machine.
pub(super) const LATER: Duration = Duration::from_mins(3);
/// Prints a line per second, serves HTTP on 8080 and echoes on 9000.
const SERVES: &str = r#"
nc -ll -p 9000 -e cat &
nc -ll -p 8080 -e sh -c 'while read line && [ "${#line}" -gt 1 ]; do :; done; printf "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"' &
i=0; while :; do echo "line $i"; i=$((i + 1)); sleep 1; done
"#;

/// A node on its own isolated host.
pub(super) struct ContainerNode<H: Host> {
    pub(super) cluster: &'static ControlPlane,
    pub(super) host: H,
    pub(super) node: String,
    provider: &'static str,
    config: Value,
    flags: Vec<String>,
    process: Option<Process>,
}

impl<H: Host> ContainerNode<H> {
    /// Starts the command and waits until the node is Ready.
    pub(super) async fn start(
        host: H,
        provider: &'static str,
        config: Value,
        node: &str,
        flags: &[&str],
    ) -> Self {
        Self::start_at(ControlPlane::shared().await, host, provider, config, node, flags).await
    }

    /// Like `start`, at another control plane.
    pub(super) async fn start_at(
        cluster: &'static ControlPlane,
        host: H,
        provider: &'static str,
        config: Value,
        node: &str,
        flags: &[&str],
    ) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut container_node =
            Self { cluster, host, node: node.to_owned(), provider, config, flags, process: None };
        container_node.launch();
        container_node.becomes("True", "").await;
        container_node
    }

    pub(super) fn folder(&self) -> &Path {
        self.host.resources().folder()
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts the command in the host's namespaces.
    pub(super) fn launch(&mut self) {
        let address = self.host.resources().addresses()[0].to_string();
        let port = self.host.resources().kubelet_port().to_string();
        let serving = self.cluster.serving_certificate(&self.node, &[&address, &self.node]).unwrap();
        let log = File::options().append(true).create(true).open(self.folder().join("virtual-kubelet.log"));
        let log = log.unwrap();
        let mut command = self.host.command(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")));
        command
            .args(["run", "--provider", self.provider, "--nodename", &self.node, "--metrics-addr", "off"])
            .args(["--port", &port, "--address", &address, "--ping-interval", "2s", "--ping-timeout", "2s"])
            .arg("--kubeconfig")
            .arg(self.cluster.admin_kubeconfig())
            .arg("--state-dir")
            .arg(self.folder().join("state"))
            .arg("--provider-config")
            .arg(self.file("provider.json", &self.config.to_string()))
            .arg("--tls-cert-file")
            .arg(self.file("serving.crt", &serving.cert_pem))
            .arg("--tls-private-key-file")
            .arg(self.file("serving.key", &serving.key_pem))
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.process = Some(Process::spawn(&mut command).unwrap());
    }

    /// Output of `doctor` in the same environment.
    pub(super) fn doctor(&self) -> Outcome {
        let mut command = self.host.command(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")));
        command.args(["doctor", "--provider", self.provider, "--nodename", &self.node, "--provider-config"]);
        let output = command.arg(self.folder().join("provider.json")).output().unwrap();
        Outcome {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The PID of the command in our PID namespace.
    pub(super) fn pid(&self) -> Option<Pid> {
        // The started process entered the namespaces and waits for the command, its only child.
        let door = self.process.as_ref()?.id();
        let children = fs::read_to_string(format!("/proc/{door}/task/{door}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok().and_then(Pid::from_raw)
    }

    /// Kills the command, like the kernel's OOM killer.
    pub(super) fn kill(&mut self) {
        kill_process(self.pid().unwrap(), Signal::KILL).unwrap();
        self.process.take().unwrap().child().wait().unwrap();
    }

    /// Waits until the node's Ready condition has this status and a message with these words.
    pub(super) async fn becomes(&self, status: &str, words: &str) {
        let nodes = super::nodes(self.cluster);
        let log = self.folder().join("virtual-kubelet.log");
        eventually(&format!("node {} has Ready={status} with {words:?}", self.node), SOON, || async {
            let log = || fs::read_to_string(&log).unwrap_or_default();
            let node = nodes.get(&self.node).await.map_err(|error| format!("{error}\n{}", log()))?;
            let ready = ready(&json!(node));
            let message = ready["message"].as_str().unwrap_or_default();
            if ready["status"] == status && message.contains(words) { Ok(()) } else { Err(ready.to_string()) }
        })
        .await;
    }

    pub(super) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.admin().unwrap(), namespace)
    }

    /// Creates a Secret.
    pub(super) async fn secret(&self, namespace: &str, name: &str, kind: &str, key: &str, value: &str) {
        let secret = json!({"metadata": {"name": name}, "type": kind, "stringData": {key: value}});
        let secrets: Api<Secret> = Api::namespaced(self.cluster.admin().unwrap(), namespace);
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    }

    /// Creates a namespace and returns its name.
    pub(super) async fn namespace(&self, prefix: &str) -> String {
        self.cluster.namespace(prefix).await.unwrap().name().to_owned()
    }

    /// Creates a pod with one container.
    pub(super) async fn create(&self, namespace: &str, name: &str, container: &Value) {
        self.create_with(namespace, name, container, json!({})).await;
    }

    /// Like `pod`, with additional fields in the spec.
    pub(super) async fn create_with(&self, namespace: &str, name: &str, container: &Value, mut spec: Value) {
        spec["nodeName"] = json!(self.node);
        spec["automountServiceAccountToken"] = json!(false);
        spec["terminationGracePeriodSeconds"] = json!(1);
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        spec["containers"] = json!([container]);
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.pods(namespace).create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Waits until the status of a pod's container satisfies a check.
    pub(super) async fn container(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let pods = self.pods(namespace);
        eventually(&format!("{name}: {what}"), LATER, || async {
            let pod = json!(pods.get(name).await.map_err(|error| error.to_string())?);
            let status = &pod["status"]["containerStatuses"][0];
            if wanted(status) { Ok(status.clone()) } else { Err(pod["status"].to_string()) }
        })
        .await
    }

    /// Waits until a pod's container was restarted often enough and returns the count.
    pub(super) async fn restarts(&self, namespace: &str, name: &str, least: u64) -> u64 {
        let count = |status: &Value| status["restartCount"].as_u64().unwrap_or(0);
        let what = format!("was restarted {least} times");
        count(&self.container(namespace, name, &what, |status| count(status) >= least).await)
    }

    /// Creates pods with a readiness probe and waits until they are Ready.
    pub(super) async fn crowd(&self, namespace: &str, count: usize) -> BTreeMap<String, Value> {
        for number in 0..count {
            let container = json!({
                "name": "main", "image": IMAGE, "command": ["/stay"],
                "readinessProbe": {"exec": {"command": ["test", "!", "-e", "/unready"]}, "periodSeconds": 1},
            });
            self.create(namespace, &format!("pod-{number}"), &container).await;
        }
        self.all_ready(namespace, count).await
    }

    /// Waits until all pods are Ready and returns the status of each first container.
    pub(super) async fn all_ready(&self, namespace: &str, count: usize) -> BTreeMap<String, Value> {
        let pods = self.pods(namespace);
        eventually("all pods are Ready", LATER, || async {
            let list = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let all: BTreeMap<String, Value> = list
                .into_iter()
                .map(|pod| {
                    let pod = json!(pod);
                    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                    (name, pod["status"]["containerStatuses"][0].clone())
                })
                .collect();
            let ready = all.values().filter(|status| status["ready"] == true).count();
            if ready == count { Ok(all) } else { Err(format!("{ready} of {}: {all:?}", all.len())) }
        })
        .await
    }

    pub(super) async fn remove(&self, namespace: &str) {
        let pods = self.pods(namespace);
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            pods.delete(&pod.metadata.name.unwrap(), &DeleteParams::default()).await.unwrap();
        }
        eventually("all pods are gone", LATER, || async {
            let left = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            if left.items.is_empty() { Ok(()) } else { Err(format!("{} are left", left.items.len())) }
        })
        .await;
    }

    /// A pod's log. Retries, because a node that has just started does not know its pods yet.
    pub(super) async fn log(&self, namespace: &str, pod: &str, more: &[&str]) -> String {
        let common = ["--namespace", namespace, "logs", pod];
        eventually(&format!("the log of {pod} can be read"), SOON, || async {
            let output = kubectl(self.cluster, common.iter().chain(more)).await;
            let output = output.map_err(|error| error.to_string())?;
            if output.success() { Ok(output.stdout) } else { Err(output.stderr) }
        })
        .await
    }

    /// Every kubectl command that accesses pods through the kubelet API.
    pub(super) async fn kubectl_reaches_in(&self) {
        let stage = KubectlSession::open(Target {
            kubectl: self.cluster.kubectl().unwrap(),
            kubeconfig: self.cluster.admin_kubeconfig().to_owned(),
            node: self.node.clone(),
            image: IMAGE.to_owned(),
            command: ["sh", "-c", SERVES].map(str::to_owned).into(),
            crashing: BTreeMap::new(),
        })
        .await;
        matrix::logs::whole_tail_and_limit(&stage).await;
        matrix::logs::times_and_since(&stage).await;
        matrix::logs::follow(&stage).await;
        matrix::logs::previous(&stage).await;
        matrix::logs::refusals(&stage).await;
        matrix::exec::output_and_errors(&stage).await;
        matrix::exec::exit_codes(&stage).await;
        matrix::exec::input_until_its_end(&stage).await;
        matrix::exec::much_output(&stage, 4 << 20).await;
        matrix::exec::terminal(&stage).await;
        matrix::exec::refusals(&stage).await;
        matrix::copy::both_ways(&stage, 2 << 20).await;
        // tar reports a missing file, but kubectl does not wait for that: busybox's tar ends its empty archive first.
        matrix::attach::output(&stage).await;
        matrix::forward::parallel_requests(&stage, 8080, 10).await;
        matrix::forward::much(&stage, 9000, 1 << 20).await;
        matrix::forward::refused_port(&stage, 1, 8080).await;
        matrix::debug::ephemeral_container(&stage).await;
        stage.close().await;
    }

    /// A container that logs as fast as it can loses no lines and does not affect others. Returns its lines per second.
    pub(super) async fn takes_a_torrent(&self) -> f64 {
        const LINES: u32 = 500_000;
        let namespace = self.namespace("torrent").await;
        let script = format!("seq {LINES}; exec yes and more");
        let writer = json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", script]});
        self.create(&namespace, "torrent", &writer).await;
        self.all_ready(&namespace, 1).await;
        let last = format!("\n{LINES}\nand more\n");
        // The output continues while earlier lines are read.
        let head = eventually("all lines were written", LATER, || async {
            let head = self.log(&namespace, "torrent", &["--limit-bytes=4000000"]).await;
            if head.contains(&last) { Ok(head) } else { Err(format!("{} bytes", head.len())) }
        })
        .await;
        let numbers = head.lines().map_while(|line| line.parse::<u32>().ok());
        assert!(numbers.eq(1..=LINES), "no line is lost, doubled or out of order");
        let times = self.log(&namespace, "torrent", &["--timestamps", "--limit-bytes=25000000"]).await;
        let time = |line: u32| -> jiff::Timestamp {
            times.lines().nth(line as usize).unwrap().split_once(' ').unwrap().0.parse().unwrap()
        };
        let took = time(LINES - 1).duration_since(time(0)).as_secs_f64();
        // Other pods still start, and the node is healthy.
        let quiet = json!({"name": "main", "image": IMAGE, "command": ["/stay"]});
        self.create(&namespace, "quiet", &quiet).await;
        self.all_ready(&namespace, 2).await;
        self.becomes("True", "").await;
        assert_eq!(self.log(&namespace, "torrent", &["--tail=2"]).await, "and more\nand more\n");
        self.remove(&namespace).await;
        f64::from(LINES) / took
    }
}

impl<H: Host> Drop for ContainerNode<H> {
    #[expect(clippy::print_stderr, reason = "what the command said, beside the panic it led to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder().join("virtual-kubelet.log")).unwrap_or_default();
            let from = log.len().saturating_sub(20_000);
            eprintln!("--- virtual-kubelet\n{}", log.get(from..).unwrap_or(&log));
        }
    }
}

/// Identifies an instance of a container.
pub(super) fn instances(pods: &BTreeMap<String, Value>) -> BTreeMap<&str, (&Value, &Value, &Value)> {
    pods.iter()
        .map(|(name, status)| {
            let started = &status["state"]["running"]["startedAt"];
            (name.as_str(), (&status["containerID"], &status["restartCount"], started))
        })
        .collect()
}

/// A number that `make e2e` increases.
pub(super) fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
