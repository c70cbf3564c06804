//! The provider `cri` with real containers: the command runs beside a containerd of its own, as a node of a real control plane.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use vk_pod_engine::{
    ContainerBackend as _,
    backend::{Resources, SandboxConfig, Sandboxed},
    snapshot::{ContainerState, SandboxState, label},
};
use vk_provider::PodRef;
use vk_provider_cri::Cri;
use vk_testing::{
    ControlPlane, Process, eventually, kubectl,
    matrix::{self, Stage, Subject},
    peer::{Containerd, Host as _, Machine, containerd},
};

use super::{SOON, becomes, ready, run};
use crate::Outcome;

/// Names another containerd than that of `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";
const IMAGE: &str = "vk.test/busybox:1";
/// Time enough for many containers on a busy machine.
const LATER: Duration = Duration::from_mins(3);
/// Writes a line a second; speaks HTTP on 8080, and gives back what it gets on 9000.
const SERVES: &str = r#"
nc -ll -p 9000 -e cat &
nc -ll -p 8080 -e sh -c 'while read line && [ "${#line}" -gt 1 ]; do :; done; printf "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"' &
i=0; while :; do echo "line $i"; i=$((i + 1)); sleep 1; done
"#;

/// A node on a containerd of its own.
struct Place {
    cluster: &'static ControlPlane,
    containerd: Containerd,
    node: String,
    flags: Vec<String>,
    process: Option<Process>,
}

impl Place {
    async fn start(node: &str, flags: &[&str]) -> Self {
        let cluster = ControlPlane::shared().await;
        let mut options = containerd::Options::default();
        if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
            options.program = program.into();
        }
        let containerd = Containerd::start(Machine::any(), options).await;
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut place = Self { cluster, containerd, node: node.to_owned(), flags, process: None };
        place.launch();
        place.becomes("True", "").await;
        place
    }

    fn folder(&self) -> &Path {
        self.containerd.machine().folder()
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts the command in the runtime's namespaces.
    fn launch(&mut self) {
        let machine = self.containerd.machine();
        let address = machine.addresses()[0].to_string();
        let serving = self.cluster.serving_certificate(&self.node, &[&address, &self.node]).unwrap();
        let provider = json!({
            "socket": self.containerd.socket(),
            "root": self.folder().join("pods"),
            "logRoot": self.folder().join("logs"),
            "cgroupRoot": format!("/{}", machine.cgroup()),
        });
        let log = File::options().append(true).create(true).open(self.folder().join("virtual-kubelet.log"));
        let log = log.unwrap();
        let mut command = self.containerd.beside(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")));
        command
            .args(["run", "--provider", "cri", "--nodename", &self.node, "--metrics-addr", "off"])
            .args(["--port", "10250", "--address", &address, "--ping-interval", "2s", "--ping-timeout", "2s"])
            .arg("--kubeconfig")
            .arg(self.cluster.admin_kubeconfig())
            .arg("--provider-config")
            .arg(self.file("provider.json", &provider.to_string()))
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

    /// What the doctor says, who looks from the same place.
    fn doctor(&self) -> Outcome {
        let mut command = self.containerd.beside(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")));
        command.args(["doctor", "--provider", "cri", "--nodename", &self.node, "--provider-config"]);
        let output = command.arg(self.folder().join("provider.json")).output().unwrap();
        Outcome {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Kills the command as the kernel does it when memory is short.
    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        // What was started went into the namespaces and waits for the command, its only child.
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let command: i32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(command), Signal::SIGKILL).unwrap();
        process.child().wait().unwrap();
    }

    /// Waits until the node's Ready condition has this status, and a message with these words.
    async fn becomes(&self, status: &str, words: &str) {
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

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.cluster.admin().unwrap(), namespace)
    }

    /// Makes a pod of one container.
    async fn create(&self, namespace: &str, name: &str, container: &Value) {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": self.node,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        self.pods(namespace).create(&PostParams::default(), &pod).await.unwrap();
    }

    /// How often a pod's container was restarted, once that is often enough.
    async fn restarts(&self, namespace: &str, name: &str, least: u64) -> u64 {
        let pods = self.pods(namespace);
        eventually(&format!("{name} was restarted {least} times"), LATER, || async {
            let pod = json!(pods.get(name).await.map_err(|error| error.to_string())?);
            let count = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
            if count >= least { Ok(count) } else { Err(pod["status"].to_string()) }
        })
        .await
    }

    /// Makes so many pods with a readiness probe, and waits until they are Ready.
    async fn crowd(&self, namespace: &str, count: usize) -> BTreeMap<String, Value> {
        for number in 0..count {
            let container = json!({
                        "name": "main", "image": IMAGE, "command": ["/stay"],
                        "readinessProbe": {"exec": {"command": ["test", "!", "-e", "/unready"]}, "periodSeconds": 1},
            });
            self.create(namespace, &format!("pod-{number}"), &container).await;
        }
        self.all_ready(namespace, count).await
    }

    /// The first container's status of each pod, once all are Ready.
    async fn all_ready(&self, namespace: &str, count: usize) -> BTreeMap<String, Value> {
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

    async fn remove(&self, namespace: &str) {
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
}

impl Drop for Place {
    #[expect(clippy::print_stderr, reason = "what the command said, beside the panic it led to")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder().join("virtual-kubelet.log")).unwrap_or_default();
            let from = log.len().saturating_sub(20_000);
            eprintln!("--- virtual-kubelet\n{}", log.get(from..).unwrap_or(&log));
        }
    }
}

/// What identifies an instance of a container.
fn instances(pods: &BTreeMap<String, Value>) -> BTreeMap<&str, (&Value, &Value, &Value)> {
    pods.iter()
        .map(|(name, status)| {
            let started = &status["state"]["running"]["startedAt"];
            (name.as_str(), (&status["containerID"], &status["restartCount"], started))
        })
        .collect()
}

/// A sandbox that somebody made by hand, with a kubelet's labels or without.
async fn foreign(cri: &Cri, name: &str, labelled: bool, folder: &Path) -> String {
    let pod = PodRef::new("default", name, format!("{name}-uid"));
    let labels = [(label::POD_NAME, name), (label::POD_NAMESPACE, "default"), (label::POD_UID, &*pod.uid)];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    cri.run_sandbox(&SandboxConfig {
        pod: pod.clone(),
        attempt: 0,
        handler: String::new(),
        hostname: name.to_owned(),
        log_directory: folder.join("foreign").display().to_string(),
        dns: None,
        ports: Vec::new(),
        labels: if labelled { labels.into() } else { BTreeMap::new() },
        annotations: BTreeMap::new(),
        cgroup_parent: String::new(),
        sysctls: BTreeMap::new(),
        security: Sandboxed::default(),
        overhead: None,
        resources: Some(Resources::default()),
    })
    .await
    .unwrap()
}

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn kubectl_reaches_into_real_containers() {
    for (way, flags) in [("websocket", &[][..]), ("spdy", &["--stream-websockets=false"])] {
        let place = Place::start(&format!("cri-kubectl-{way}"), flags).await;
        let stage = Stage::open(Subject {
            kubectl: place.cluster.kubectl().unwrap(),
            kubeconfig: place.cluster.admin_kubeconfig().to_owned(),
            node: place.node.clone(),
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
        // A file that is missing is told by tar, and kubectl does not wait for that: busybox's tar ends its empty archive first.
        matrix::attach::output(&stage).await;
        matrix::forward::parallel_requests(&stage, 8080, 10).await;
        matrix::forward::much(&stage, 9000, 1 << 20).await;
        matrix::forward::refused_port(&stage, 1, 8080).await;
        matrix::debug::ephemeral_container(&stage).await;
        stage.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_killed_process_finds_its_pods_as_they_were_and_leaves_others_alone() {
    let count = number("VK_CRI_PODS", 10);
    let mut place = Place::start("cri-killed", &[]).await;
    let cri = Cri::connect(place.containerd.socket()).await.unwrap();
    let strangers = [
        foreign(&cri, "by-hand", false, place.folder()).await,
        foreign(&cri, "of-a-kubelet", true, place.folder()).await,
    ];
    let namespace = place.cluster.namespace("cri-killed").await.unwrap().name().to_owned();
    let loops = place.cluster.namespace("cri-loops").await.unwrap().name().to_owned();
    place.create(&loops, "looping", &json!({"name": "main", "image": IMAGE, "command": ["false"]})).await;
    let restarts = place.restarts(&loops, "looping", 1).await;
    let before = place.crowd(&namespace, count).await;
    place.kill();
    place.launch();
    place.becomes("True", "").await;
    let after = place.all_ready(&namespace, count).await;
    assert_eq!(instances(&after), instances(&before));
    assert!(after.values().all(|status| status["restartCount"] == 0), "{after:?}");
    // What waited for its next start goes on counting, and probes go on.
    place.restarts(&loops, "looping", restarts + 1).await;
    let id = after["pod-0"]["containerID"].as_str().unwrap().trim_start_matches("containerd://");
    cri.run(id, &["touch", "/unready"].map(str::to_owned), SOON).await.unwrap();
    let pods = place.pods(&namespace);
    eventually("the probe has failed", SOON, || async {
        let pod = json!(pods.get("pod-0").await.map_err(|error| error.to_string())?);
        let status = &pod["status"]["containerStatuses"][0];
        if status["ready"] == false { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    place.remove(&loops).await;
    place.remove(&namespace).await;
    for id in strangers {
        let sandbox = cri.sandbox(&id).await.unwrap();
        assert_eq!(sandbox.state, SandboxState::Ready, "{sandbox:?}");
        cri.stop_sandbox(&id).await.unwrap();
        cri.remove_sandbox(&id).await.unwrap();
    }
    let left = cri.list(&BTreeMap::new()).await.unwrap();
    assert!(left.sandboxes.iter().all(|sandbox| sandbox.state == SandboxState::NotReady), "{left:?}");
    assert!(left.containers.iter().all(|container| container.state == ContainerState::Exited), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_runtime_that_dies_or_hangs_is_told_and_everything_recovers() {
    let mut place = Place::start("cri-runtime", &[]).await;
    let namespace = place.cluster.namespace("cri-runtime").await.unwrap().name().to_owned();
    let before = place.crowd(&namespace, 3).await;
    let healthy = place.doctor();
    assert_eq!(healthy.code, 0, "{healthy:#?}");
    for line in [
        "ok       runtime: containerd ",
        "ok       pod network: yes",
        "ok       foreign pods: none, and 3 of this node",
    ] {
        assert!(healthy.stdout.contains(line), "{line}: {healthy:#?}");
    }
    place.containerd.kill();
    let sick = place.doctor();
    assert_eq!(sick.code, 1, "{sick:#?}");
    assert!(sick.stdout.contains("error    runtime: connection error"), "{sick:#?}");
    place.becomes("False", "container runtime").await;
    place.containerd.restart().await;
    place.becomes("True", "").await;
    let after = place.all_ready(&namespace, 3).await;
    assert_eq!(instances(&after), instances(&before), "containers go on without the runtime");
    place.containerd.pause();
    place.becomes("False", "").await;
    place.containerd.resume();
    place.becomes("True", "").await;
    let after = place.all_ready(&namespace, 3).await;
    assert_eq!(instances(&after), instances(&before));
    place.remove(&namespace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_container_that_writes_lines_as_fast_as_it_can_loses_none_and_harms_nobody() {
    const LINES: usize = 500_000;
    let place = Place::start("cri-torrent", &[]).await;
    let namespace = place.cluster.namespace("cri-torrent").await.unwrap().name().to_owned();
    let script = format!("seq {LINES}; exec yes and more");
    place
        .create(
            &namespace,
            "torrent",
            &json!({"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}),
        )
        .await;
    let logs = |more: &'static [&'static str]| {
        let common = ["--namespace", &namespace, "logs", "torrent"];
        kubectl(
            place.cluster,
            common.into_iter().chain(more.iter().copied()).map(str::to_owned).collect::<Vec<_>>(),
        )
    };
    let (first, last) = ("1\n", format!("\n{LINES}\nand more\n"));
    // The torrent goes on while somebody reads what came before.
    let head = eventually("all lines were written", LATER, || async {
        let head = logs(&["--limit-bytes=4000000"]).await.map_err(|error| error.to_string())?;
        if head.stdout.contains(&last) {
            Ok(head.stdout)
        } else {
            Err(format!("{} bytes: {}", head.stdout.len(), head.stderr))
        }
    })
    .await;
    assert!(head.starts_with(first));
    let numbers = head.lines().take(LINES).map(|line| line.parse::<usize>().unwrap());
    assert!(numbers.eq(1..=LINES), "no line is lost, doubled or out of order");
    let times = logs(&["--timestamps", "--limit-bytes=25000000"]).await.unwrap().stdout;
    let time = |line: usize| {
        times.lines().nth(line).unwrap().split_once(' ').unwrap().0.parse::<jiff::Timestamp>().unwrap()
    };
    println!("{LINES} lines in {:#}", time(LINES - 1) - time(0));
    // Others start as ever, and the node is well.
    place.create(&namespace, "quiet", &json!({"name": "main", "image": IMAGE, "command": ["/stay"]})).await;
    place.all_ready(&namespace, 2).await;
    place.becomes("True", "").await;
    assert_eq!(logs(&["--tail=2"]).await.unwrap().stdout, "and more\nand more\n");
    place.remove(&namespace).await;
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_node_without_its_runtime_says_so_and_waits() {
    let cluster = ControlPlane::shared().await;
    let command =
        run(cluster, &["--provider", "cri", "--nodename", "cri-absent", "--provider-config", "cri.yaml"]);
    command.write("cri.yaml", "socket: /nonexistent/cri.sock\n");
    let mut process = command.start();
    let node = becomes(cluster, "cri-absent", "False", "ProviderNotReady", SOON).await;
    let message = ready(&node)["message"].to_string();
    for words in ["container runtime is down", "/nonexistent/cri.sock", "no such file or directory"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(node["status"]["capacity"]["pods"], "110");
    assert!(process.is_running());
    assert_eq!(process.stop(SOON).await.code, 0);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_provider_configuration_that_is_wrong_ends_the_command() {
    let cluster = ControlPlane::shared().await;
    let command =
        run(cluster, &["--provider", "cri", "--nodename", "cri-wrong", "--provider-config", "cri.yaml"]);
    command.write("cri.yaml", "maxPods: 0\n");
    let outcome = command.start().end(SOON).await;
    outcome.failed(2, &["maxPods", "1 or more"]);
}
