//! The real kubelet on containerd, as a node of a control plane.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Containerd, Host as _, NamespacedProcess, write};
use crate::ControlPlane;

/// The environment variable with the path of the program.
const PROGRAM: &str = "VK_KUBELET";

/// How to start the kubelet.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node's name.
    pub node: String,
    /// Feature gates to enable.
    pub features: Vec<String>,
}

/// A running kubelet. Its port is the usual one, on an address of its resources.
#[derive(Debug)]
pub struct Kubelet {
    folder: PathBuf,
    process: NamespacedProcess,
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts a kubelet that uses this containerd. It registers its node with the addresses of the host resources.
    pub async fn start(containerd: &Containerd, cluster: &ControlPlane, options: &Options) -> Self {
        let program = std::env::var_os(PROGRAM).map(PathBuf::from);
        let program = program.unwrap_or_else(|| {
            panic!("{PROGRAM} is not set: dev/kubelet/build builds a kubelet and prints its path")
        });
        let resources = containerd.resources();
        let folder = resources.folder();
        let node = &options.node;
        let kubeconfig = folder.join("kubeconfig");
        let user = format!("system:node:{node}");
        cluster.write_kubeconfig(&kubeconfig, &user, &["system:nodes"]).expect("a kubeconfig");
        let addresses = resources.addresses().map(|address| address.to_string());
        let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let serving = cluster.serving_certificate(&user, &names).expect("a certificate");
        write(&folder.join("kubelet.crt"), &serving.cert_pem);
        write(&folder.join("kubelet.key"), &serving.key_pem);
        write(&folder.join("clients.crt"), cluster.ca_pem());
        let file = folder.join("kubelet.json");
        write(&file, config(containerd, options).to_string());
        let log = File::create(folder.join("kubelet.log")).expect("a log file");
        let mut command = containerd.command(&program);
        command
            .arg("--config")
            .arg(&file)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--root-dir")
            .arg(folder.join("kubelet"))
            .arg("--cert-dir")
            .arg(folder.join("kubelet/pki"))
            .args(["--hostname-override", node, "--node-ip", &addresses.join(",")])
            .stdout(log.try_clone().expect("the same file"))
            .stderr(log);
        let process = NamespacedProcess::start(&mut command).await;
        Self { folder: folder.to_owned(), process }
    }

    /// Its folder, which appears in messages.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of pod logs.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

fn config(containerd: &Containerd, options: &Options) -> Value {
    let resources = containerd.resources();
    let folder = resources.folder();
    let features: BTreeMap<&str, bool> = options.features.iter().map(|name| (name.as_str(), true)).collect();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "featureGates": features,
        "containerRuntimeEndpoint": format!("unix://{}", containerd.socket().display()),
        "podLogsDir": folder.join("logs"),
        "volumePluginDir": folder.join("plugins"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", resources.cgroup()),
        "enforceNodeAllocatable": [],
        "maxPods": 500,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": folder.join("clients.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": folder.join("kubelet.crt"),
        "tlsPrivateKeyFile": folder.join("kubelet.key"),
        "address": resources.addresses()[0],
        "port": resources.kubelet_port(),
        "healthzPort": 0,
        "makeIPTablesUtilChains": false,
        // Without an address the kubelet warns for each pod.
        "clusterDNS": ["10.0.0.10"],
        "clusterDomain": "cluster.local",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
    })
}
