//! The kubelet itself.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use vk_testing::{ControlPlane, Process};

use super::{
    machine::{CGROUP, Machine, NODE_ADDRESSES},
    runtime::Runtime,
};
use crate::kubelet::{case::NODE, stage::FEATURES};

/// Names the program.
const PROGRAM: &str = "VK_KUBELET";

/// A running kubelet.
pub(super) struct Agent {
    folder: PathBuf,
    logs: PathBuf,
    _process: Process,
}

// === impl Agent ===

impl Agent {
    pub(super) fn start(machine: &Machine, runtime: &Runtime, cluster: &ControlPlane) -> Self {
        let program = std::env::var_os(PROGRAM).map(PathBuf::from);
        let program = program.unwrap_or_else(|| panic!("{PROGRAM} names no kubelet: run `make e2e-resolve`"));
        let folder = machine.folder();
        let logs = folder.join("logs");
        let kubeconfig = folder.join("kubeconfig");
        cluster.write_kubeconfig(&kubeconfig, &format!("system:node:{NODE}"), &["system:nodes"]).unwrap();
        let file = folder.join("kubelet.json");
        std::fs::write(&file, config(folder, &runtime.socket(), &logs).to_string()).unwrap();
        let log = File::create(folder.join("kubelet.log")).unwrap();
        let mut command: Command = runtime.beside(&program);
        command
            .arg("--config")
            .arg(&file)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--root-dir")
            .arg(folder.join("kubelet"))
            .arg("--cert-dir")
            .arg(folder.join("kubelet/pki"))
            .args(["--hostname-override", NODE, "--node-ip", &NODE_ADDRESSES.join(",")])
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Self { folder: folder.to_owned(), logs, _process: Process::spawn(&mut command).unwrap() }
    }

    /// Where it keeps everything, which it names in messages.
    pub(super) fn folder(&self) -> &str {
        self.folder.to_str().unwrap()
    }

    /// What a container printed in its first run, as far as it is written.
    pub(super) fn printed(&self, namespace: &str, pod: &str, uid: &str, container: &str) -> String {
        let file = self.logs.join(format!("{namespace}_{pod}_{uid}")).join(container).join("0.log");
        let Ok(log) = std::fs::read_to_string(file) else { return String::new() };
        let mut text = String::new();
        for line in log.lines() {
            // Time, stream, whether the line is whole or a part of one, text.
            let mut fields = line.splitn(4, ' ');
            let (_, stream, part, printed) = (fields.next(), fields.next(), fields.next(), fields.next());
            assert_eq!(stream, Some("stdout"), "{pod}/{container}: {line}");
            text.push_str(printed.unwrap_or_default());
            if part == Some("F") {
                text.push('\n');
            }
        }
        text
    }
}

fn config(folder: &Path, socket: &Path, logs: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "featureGates": FEATURES.map(|feature| (feature, true)).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "podLogsDir": logs,
        "volumePluginDir": folder.join("plugins"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{CGROUP}"),
        "enforceNodeAllocatable": [],
        "maxPods": 500,
        // Nobody asks it anything, so it need not let anybody in.
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "port": 11250,
        "healthzPort": 0,
        "makeIPTablesUtilChains": false,
        // An address, so that it does not warn of each pod that there is none.
        "clusterDNS": ["10.0.0.10"],
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
    })
}
