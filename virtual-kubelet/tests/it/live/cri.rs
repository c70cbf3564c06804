//! The provider `cri` with real containers: the command runs beside a containerd of its own, as a node of a real control plane.

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
    peer::{Containerd, Host as _, Machine, containerd},
};

use super::{
    SOON, becomes,
    place::{IMAGE, Place, instances, number},
    ready, run,
};

/// Names another containerd than that of `PATH`.
const CONTAINERD: &str = "VK_CONTAINERD";

async fn place(node: &str, flags: &[&str]) -> Place<Containerd> {
    let mut options = containerd::Options::default();
    if let Some(program) = std::env::var_os(CONTAINERD).filter(|program| !program.is_empty()) {
        options.program = program.into();
    }
    let containerd = Containerd::start(Machine::any(), options).await;
    let (machine, folder) = (containerd.machine(), containerd.machine().folder());
    let config = json!({
        "socket": containerd.socket(),
        "root": folder.join("pods"),
        "logRoot": folder.join("logs"),
        "cgroupRoot": format!("/{}", machine.cgroup()),
    });
    Place::start(containerd, "cri", config, node, flags).await
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
        place(&format!("cri-kubectl-{way}"), flags).await.kubectl_reaches_in().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_killed_process_finds_its_pods_as_they_were_and_leaves_others_alone() {
    let count = number("VK_CRI_PODS", 10);
    let mut place = place("cri-killed", &[]).await;
    let cri = Cri::connect(place.host.socket()).await.unwrap();
    let strangers = [
        foreign(&cri, "by-hand", false, place.folder()).await,
        foreign(&cri, "of-a-kubelet", true, place.folder()).await,
    ];
    let namespace = place.namespace("cri-killed").await;
    let loops = place.namespace("cri-loops").await;
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
    let mut place = place("cri-runtime", &[]).await;
    let namespace = place.namespace("cri-runtime").await;
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
    place.host.kill();
    let sick = place.doctor();
    assert_eq!(sick.code, 1, "{sick:#?}");
    assert!(sick.stdout.contains("error    runtime: connection error"), "{sick:#?}");
    place.becomes("False", "container runtime").await;
    place.host.restart().await;
    place.becomes("True", "").await;
    let after = place.all_ready(&namespace, 3).await;
    assert_eq!(instances(&after), instances(&before), "containers go on without the runtime");
    place.host.pause();
    place.becomes("False", "").await;
    place.host.resume();
    place.becomes("True", "").await;
    let after = place.all_ready(&namespace, 3).await;
    assert_eq!(instances(&after), instances(&before));
    place.remove(&namespace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn a_container_that_writes_lines_as_fast_as_it_can_loses_none_and_harms_nobody() {
    let rate = place("cri-torrent", &[]).await.takes_a_torrent().await;
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
