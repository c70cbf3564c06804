//! The provider `cri` with real containers: the command with its own containerd, as a node of a real control plane.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{collections::BTreeMap, path::Path};

use serde_json::json;
use vk_pod_engine::{
    ContainerBackend as _,
    backend::{Resources, SandboxConfig, SandboxSecurity},
    snapshot::{ContainerState, SandboxState, label},
};
use vk_provider::PodRef;
use vk_provider_cri::Cri;
use vk_testing::{
    ControlPlane, eventually,
    host::{Containerd, Host as _, HostResources, containerd},
};

use super::{
    SOON, becomes,
    container_node::{ContainerNode, IMAGE, instances, number},
    ready, run,
};

/// Names another containerd than that of `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";

async fn start_node(node: &str, flags: &[&str]) -> ContainerNode<Containerd> {
    let mut options = containerd::Options::default();
    if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
        options.program = program.into();
    }
    let containerd = Containerd::start(HostResources::any(), options).await;
    let (machine, folder) = (containerd.resources(), containerd.resources().folder());
    let config = json!({
        "socket": containerd.socket(),
        "root": folder.join("pods"),
        "logRoot": folder.join("logs"),
        "cgroupRoot": format!("/{}", machine.cgroup()),
    });
    ContainerNode::start(containerd, "cri", config, node, flags).await
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
        security: SandboxSecurity::default(),
        overhead: None,
        resources: Some(Resources::default()),
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn kubectl_reaches_into_real_containers() {
    for (way, flags) in [("websocket", &[][..]), ("spdy", &["--stream-websockets=false"])] {
        start_node(&format!("cri-kubectl-{way}"), flags).await.kubectl_reaches_in().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_killed_process_finds_its_pods_as_they_were_and_leaves_others_alone() {
    let count = number("VK_CRI_PODS", 10);
    let mut container_node = start_node("cri-killed", &[]).await;
    let cri = Cri::connect(container_node.host.socket()).await.unwrap();
    let strangers = [
        foreign(&cri, "by-hand", false, container_node.folder()).await,
        foreign(&cri, "of-a-kubelet", true, container_node.folder()).await,
    ];
    let namespace = container_node.namespace("cri-killed").await;
    let loops = container_node.namespace("cri-loops").await;
    container_node
        .create(&loops, "looping", &json!({"name": "main", "image": IMAGE, "command": ["false"]}))
        .await;
    let restarts = container_node.restarts(&loops, "looping", 1).await;
    let before = container_node.crowd(&namespace, count).await;
    container_node.kill();
    container_node.launch();
    container_node.becomes("True", "").await;
    let after = container_node.all_ready(&namespace, count).await;
    assert_eq!(instances(&after), instances(&before));
    assert!(after.values().all(|status| status["restartCount"] == 0), "{after:?}");
    // What waited for its next start goes on counting, and probes go on.
    container_node.restarts(&loops, "looping", restarts + 1).await;
    let id = after["pod-0"]["containerID"].as_str().unwrap().trim_start_matches("containerd://");
    cri.run(id, &["touch", "/unready"].map(str::to_owned), SOON).await.unwrap();
    let pods = container_node.pods(&namespace);
    eventually("the probe has failed", SOON, || async {
        let pod = json!(pods.get("pod-0").await.map_err(|error| error.to_string())?);
        let status = &pod["status"]["containerStatuses"][0];
        if status["ready"] == false { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    container_node.remove(&loops).await;
    container_node.remove(&namespace).await;
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
    let mut container_node = start_node("cri-runtime", &[]).await;
    let namespace = container_node.namespace("cri-runtime").await;
    let before = container_node.crowd(&namespace, 3).await;
    let healthy = container_node.doctor();
    assert_eq!(healthy.code, 0, "{healthy:#?}");
    for line in [
        "ok       runtime: containerd ",
        "ok       pod network: yes",
        "ok       foreign pods: none, and 3 of this node",
    ] {
        assert!(healthy.stdout.contains(line), "{line}: {healthy:#?}");
    }
    container_node.host.kill();
    let sick = container_node.doctor();
    assert_eq!(sick.code, 1, "{sick:#?}");
    assert!(sick.stdout.contains("error    runtime: connection error"), "{sick:#?}");
    container_node.becomes("False", "container runtime").await;
    container_node.host.restart().await;
    container_node.becomes("True", "").await;
    let after = container_node.all_ready(&namespace, 3).await;
    assert_eq!(instances(&after), instances(&before), "containers go on without the runtime");
    container_node.host.pause();
    container_node.becomes("False", "").await;
    container_node.host.resume();
    container_node.becomes("True", "").await;
    let after = container_node.all_ready(&namespace, 3).await;
    assert_eq!(instances(&after), instances(&before));
    container_node.remove(&namespace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_container_that_writes_lines_as_fast_as_it_can_loses_none_and_harms_nobody() {
    let rate = start_node("cri-torrent", &[]).await.takes_a_torrent().await;
    println!("{rate:.0} lines a second");
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
