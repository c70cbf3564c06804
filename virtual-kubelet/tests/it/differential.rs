//! That pods on containers fare with ours as with the real kubelet, on containerd and with no runtime but our own.
//!
//! The command runs as a node of a control plane, and every pod of the corpus goes through its steps. What there is to see at each
//! checkpoint is compared with what was recorded of the kubelet (`crates/pod-engine/tests/it/kubelet`): the status, what containers
//! wrote, and what people were told.

#![allow(clippy::print_stdout, reason = "it takes minutes, and people want to see how far it is")]

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use futures::{StreamExt as _, future, stream};
use serde_json::{Value, json};
use vk_supervisor::Clock;
use vk_testing::{
    Process,
    corpus::{NODE, NodeEnvironment, Recording},
    host::{Host, HostResources, Image},
};

use crate::network_cleanup::NetworkCleanup;

/// Where the provider `local` is meant to differ from the kubelet on containerd, and why.
const LOCAL: [(&str, &str); 5] = [
    ("command-absent", "what failed to start it is not containerd, and is not said to be"),
    ("command-absent-never", "what failed to start it is not containerd, and is not said to be"),
    ("host-aliases", "its network has one family of addresses, and /etc/hosts one line for them"),
    ("hostname-and-subdomain", "its network has one family of addresses, and /etc/hosts one line for them"),
    ("hostname-as-fqdn", "its network has one family of addresses, and /etc/hosts one line for them"),
];
/// The kubelet on it is what `local` is compared with: the newest that was recorded.
const NEWEST: &str = "containerd-2.1";
/// What people hear from ours beside what a kubelet tells: what the node does with its provider, and what a pod refers to that is not
/// there, by name.
const OWN: [&str; 9] = [
    "ProviderCreateSuccess",
    "ProviderUpdateSuccess",
    "ProviderDeleteSuccess",
    "MandatoryConfigMapNotFound",
    "OptionalConfigMapNotFound",
    "MandatorySecretNotFound",
    "OptionalSecretNotFound",
    "MandatorySecretKeyNotFound",
    "OptionalSecretKeyNotFound",
];
/// Chooses among the cases: parts of their names.
#[cfg(feature = "e2e")]
const ONLY: &str = "VK_ONLY";
/// Pods that run at once.
const AT_ONCE: usize = 16;
/// One for each large part of what a kubelet does.
const SOME: [&str; 12] = [
    "crash-1-always",
    "exits-0-and-5-never",
    "init-order",
    "sidecar-of-a-job",
    "liveness-fails-exec",
    "probes-pass-http",
    "pre-stop-exec",
    "image-private",
    "command-absent-never",
    "termination-message",
    "volume-sub-path",
    "config-map-missing",
];

#[tokio::test]
#[ignore = "needs the control plane, root and containerd: make test"]
async fn some_pods_fare_as_with_the_kubelet() {
    on_containerd(|name| SOME.contains(&name)).await;
}

#[tokio::test]
#[ignore = "needs the control plane and root: make test"]
async fn some_pods_fare_without_a_runtime_as_with_the_kubelet() {
    on_nothing(|name| SOME.contains(&name)).await;
}

#[cfg(feature = "e2e")]
#[tokio::test]
#[ignore = "needs the control plane, root and containerd: make e2e-cri"]
async fn all_pods_fare_as_with_the_kubelet() {
    on_containerd(asked_for()).await;
}

#[cfg(feature = "e2e")]
#[tokio::test]
#[ignore = "needs the control plane and root: make e2e-local"]
async fn all_pods_fare_without_a_runtime_as_with_the_kubelet() {
    on_nothing(asked_for()).await;
}

#[cfg(feature = "e2e")]
fn asked_for() -> impl Fn(&str) -> bool {
    let only = std::env::var(ONLY).unwrap_or_default();
    move |name| only.split(',').any(|part| name.contains(part))
}

async fn on_containerd(chosen: impl Fn(&str) -> bool) {
    let scene = NodeEnvironment::start(HostResources::any()).await;
    let (machine, folder) = (scene.host.resources(), scene.host.resources().folder());
    let provider = json!({
        "socket": scene.host.socket(),
        "root": folder.join("kubelet"),
        "logRoot": folder.join("logs"),
        "clusterDNS": ["10.0.0.10"],
        "cgroupRoot": format!("/{}", machine.cgroup()),
        "maxPods": 500,
    });
    let command = start(&scene, "cri", &provider);
    compare(&scene, &scene.runtime(), ("containerd", 2), &[], chosen).await;
    drop(command);
}

async fn on_nothing(chosen: impl Fn(&str) -> bool) {
    let scene = NodeEnvironment::start_bare(HostResources::any()).await;
    let (machine, folder) = (scene.host.resources(), scene.host.resources().folder());
    let archive = scene.host.archive(&Image::standard());
    let import = scene
        .host
        .command(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")))
        .args(["image", "import", "--state-dir"])
        .args([&folder.join("state"), &archive])
        .output()
        .unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    let provider = json!({
        "root": folder.join("kubelet"),
        "logRoot": folder.join("logs"),
        "clusterDNS": ["10.0.0.10"],
        "cgroupRoot": format!("/{}", machine.cgroup()),
        "maxPods": 500,
    });
    let _network = NetworkCleanup(folder.join("kubelet").join(NODE).join("local/network"));
    let command = start(&scene, "local", &provider);
    // Its network has one family.
    compare(&scene, NEWEST, ("local", 1), &LOCAL, chosen).await;
    drop(command);
}

/// Lets every pod that is chosen go through its steps, and compares it with the recording of that runtime.
async fn compare<H: Host>(
    scene: &NodeEnvironment<H>,
    recorded: &str,
    (name, addresses): (&str, usize),
    deliberate: &[(&str, &str)],
    chosen: impl Fn(&str) -> bool,
) {
    let info = scene.node().await.status.unwrap().node_info.unwrap();
    println!("virtual-kubelet {} on {}", info.kubelet_version, info.container_runtime_version);
    let mut stage =
        scene.runner(Arc::new(|_| Box::pin(future::ready(Value::Null))), || Clock::system().now());
    stage.own_events = &OWN;
    stage.addresses = addresses;
    stage.replacements.push((format!("{name}://"), "containerd://"));
    let stage = &stage;
    let folder = &data().join("recorded").join(recorded);
    let mut cases = scene.cases(&data().join("corpus"));
    cases.retain(|case| chosen(&case.name));
    let found: Vec<(String, Vec<String>)> = stream::iter(&cases)
        .map(|case| async move {
            let recorded = Recording::load(folder, &case.name);
            let found = Box::pin(stage.compare(case, &recorded)).await;
            println!("{}: {}", case.name, if found.is_empty() { "the same" } else { "differs" });
            (case.name.clone(), found)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let meant = |name: &str| deliberate.iter().any(|(case, _)| *case == name);
    let wrong: Vec<String> = found
        .iter()
        .filter(|(name, differences)| meant(name) == differences.is_empty())
        .map(|(name, differences)| match differences.as_slice() {
            [] => format!("{name}: as the kubelet does it, though it is said to be otherwise"),
            differences => format!("{name}:\n  {}", differences.join("\n  ")),
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), found.len(), wrong.join("\n"));
}

/// The command, in the namespaces of the host, with the settings that the kubelet had.
fn start<H: Host>(scene: &NodeEnvironment<H>, provider: &str, config: &Value) -> Process {
    let machine = scene.host.resources();
    let folder = machine.folder();
    let [address, second] = machine.addresses();
    let user = format!("system:node:{NODE}");
    let kubeconfig = folder.join("kubeconfig");
    scene.cluster.write_kubeconfig(&kubeconfig, &user, &["system:nodes"]).unwrap();
    let names = [address.to_string(), second.to_string()];
    let serving = scene.cluster.serving_certificate(&user, &[&names[0], &names[1]]).unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let config = file("provider.yaml", &config.to_string());
    let certificate = file("serving.crt", &serving.cert_pem);
    let key = file("serving.key", &serving.key_pem);
    let clients = file("clients.crt", scene.cluster.ca_pem());
    let log = File::create(folder.join("virtual-kubelet.log")).unwrap();
    let mut command = scene.host.command(Path::new(env!("CARGO_BIN_EXE_virtual-kubelet")));
    command
        .args(["run", "--provider", provider, "--nodename", NODE, "--metrics-addr", "off"])
        .args([
            "--internal-ip",
            &names[0],
            "--address",
            &names[0],
            "--port",
            &machine.kubelet_port().to_string(),
        ])
        .arg("--state-dir")
        .arg(folder.join("state"))
        .arg("--provider-config")
        .arg(config)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--tls-cert-file")
        .arg(certificate)
        .arg("--tls-private-key-file")
        .arg(key)
        .arg("--client-verify-ca")
        .arg(clients)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    Process::spawn(&mut command).unwrap()
}

/// Where the corpus and the recordings are.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/pod-engine/tests/it/kubelet")
}
