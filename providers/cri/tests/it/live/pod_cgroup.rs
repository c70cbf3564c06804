//! The cgroup of a pod, which the agent creates and the runtime puts the containers into.

use std::{fs, path::Path, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use vk_pod_engine::cgroup::{HostCgroups, MOUNT_POINT};
use vk_provider::{Config, Context, Factory as _, NodeEvent, PodRef, Provider, Supervisor};
use vk_provider_cri::CriFactory;
use vk_testing::{conformance::bundle, eventually};

use super::{RuntimePaths, containerd};

const IMAGE: &str = "vk.test/busybox:1";
const SOON: Duration = Duration::from_mins(1);

/// How the cgroups of the nodes of this test begin. The id of the process follows.
const PREFIX: &str = "virtual-kubelet-pod-cgroup-";

/// The cgroup of the node. Removed when dropped, and before use when an earlier run was killed.
struct NodeCgroups {
    node_name: String,
}

impl NodeCgroups {
    fn new() -> Self {
        for (path, process) in all_node_cgroups() {
            // The cgroup of a run that goes on at the same time stays.
            if !Path::new(&format!("/proc/{process}")).exists() {
                remove(&path);
            }
        }
        Self { node_name: format!("pod-cgroup-{}", std::process::id()) }
    }

    fn own() -> Vec<String> {
        let own = all_node_cgroups().into_iter().filter(|(_, process)| *process == std::process::id());
        own.map(|(path, _)| path).collect()
    }
}

impl Drop for NodeCgroups {
    fn drop(&mut self) {
        for path in Self::own() {
            remove(&path);
        }
    }
}

fn remove(path: &str) {
    let cgroups = HostCgroups::mounted().unwrap();
    let _ = cgroups.kill(path);
    let _ = cgroups.remove(path);
}

/// The cgroups of all runs of this test, each with the id of its process.
fn all_node_cgroups() -> Vec<(String, u32)> {
    let memory = if HostCgroups::mounted().unwrap().is_unified() { "" } else { "memory" };
    let entries = fs::read_dir(format!("{MOUNT_POINT}/{memory}")).unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let of_process = |name: String| {
        let process = name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()?;
        Some((format!("/{name}"), process))
    };
    names.filter_map(of_process).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs containerd, as root: make test"]
async fn limits_of_a_pod_hold_for_the_pod_as_a_whole_also_without_a_configured_cgroup() {
    // Before the runtime, so that it is dropped after it.
    let node = NodeCgroups::new();
    let containerd = containerd().await;
    let paths = RuntimePaths::on(&containerd);
    // No `cgroupRoot`.
    let config = json!({ "socket": paths.socket, "root": paths.shared.join("pods"), "logRoot": paths.logs });
    let state = tempfile::tempdir().unwrap();
    let context = Context {
        supervisor: Supervisor::new(),
        node_name: node.node_name.clone(),
        internal_ip: [192, 0, 2, 10].into(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: state.path().to_owned(),
        shared_dir: state.path().to_owned(),
        extensions: vk_provider::Extensions::default(),
    };
    let backend = CriFactory.open(Config::Inline(config), context).await.unwrap();
    let Some(NodeEvent::Added(_, provider)) = backend.nodes().next().await else { panic!("one node") };
    let provider: Arc<dyn Provider> = provider;
    let container = |name: &str| json!({ "name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["/stay"] });
    let pod: Arc<Pod> = Arc::new(
        serde_json::from_value(json!({
            "metadata": { "name": "together", "namespace": "default", "uid": "uid-together" },
            "spec": {
                "nodeName": node.node_name,
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "dnsPolicy": "Default",
                "resources": { "limits": { "memory": "32Mi", "cpu": "500m" }, "requests": { "cpu": "100m" } },
                "containers": [container("one"), container("two")],
            },
            "status": { "phase": "Pending" },
        }))
        .unwrap(),
    );
    provider.create_pod(bundle(&pod, true)).await.unwrap();
    let reference = PodRef::of(&pod).unwrap();
    eventually("the pod runs", SOON, || async {
        let status = provider.pod_status(&reference).await.map_err(|error| error.report())?;
        let mut containers = status.container_statuses.iter().flatten();
        let running = containers.all(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()));
        if running && status.phase.as_deref() == Some("Running") {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    let roots = NodeCgroups::own();
    let [root] = roots.as_slice() else { panic!("the node's cgroup: {roots:?}") };
    let cgroups = HostCgroups::mounted().unwrap();
    let of_pod = format!("{root}/burstable/poduid-together");
    let read = |controller: &str, v1: &str, v2: &str| {
        let (hierarchy, file) = if cgroups.is_unified() { ("", v2) } else { (controller, v1) };
        fs::read_to_string(format!("{MOUNT_POINT}/{hierarchy}{of_pod}/{file}")).unwrap().trim().to_owned()
    };
    assert_eq!(read("memory", "memory.limit_in_bytes", "memory.max"), (32 << 20).to_string());
    assert!(read("cpu", "cpu.cfs_quota_us", "cpu.max").starts_with("50000"));
    // Two containers and the sandbox.
    assert_eq!(cgroups.children(&of_pod).len(), 3, "{:?}", cgroups.children(&of_pod));
    assert!(cgroups.usage(&of_pod).unwrap().processes >= Some(3));
    provider.delete_pod(&reference, None, Duration::from_secs(1)).await.unwrap();
    eventually("the pod's cgroup is removed", SOON, || async {
        if cgroups.exists(&of_pod) { Err("it exists") } else { Ok(()) }
    })
    .await;
    drop((provider, backend));
    drop(node);
    assert_eq!(NodeCgroups::own(), Vec::<String>::new());
}
