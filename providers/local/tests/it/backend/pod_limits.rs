//! Limits and weights of whole pods, with the engine and real containers.

use std::{cell::Cell, fs, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};
use vk_provider::{Config, Context, Factory as _, NodeEvent, PodRef, Provider, Supervisor};
use vk_provider_local::{
    LocalFactory,
    cgroup::{HostCgroups, MOUNT_POINT},
    factory::remove_node,
    isolation::Isolation,
    shim::Program,
};
use vk_testing::{conformance::bundle, eventually};

use super::test_backend::{IMAGE, SOON, TestBackend};

/// A node with the provider, as the binary opens it.
struct TestNode {
    test_backend: TestBackend,
    config: Value,
    context: Context,
    provider: Arc<dyn Provider>,
}

impl TestNode {
    async fn new(reserved: &Value) -> Self {
        let test_backend = TestBackend::bare(Isolation::Oci);
        drop(test_backend.store());
        let state = test_backend.root();
        let config = json!({
            "level": "oci",
            "imageDir": state.parent().expect("a directory").join("images"),
            "cgroupRoot": test_backend.cgroup(),
            "network": "host",
            "minFreeDisk": "1Mi",
            "reserved": reserved,
        });
        let context = Context {
            supervisor: Supervisor::new(),
            node_name: "limits".to_owned(),
            internal_ip: [192, 0, 2, 10].into(),
            kubelet_port: 10250,
            operating_system: "linux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
            cluster: None,
            state_dir: state.clone(),
            shared_dir: state,
            extensions: vk_provider::Extensions::default(),
        };
        let program = Program { path: env!("CARGO_BIN_EXE_vk-local-shim").into(), args: vec![] };
        let factory = LocalFactory::with_program(program);
        let opened = factory.open(Config::Inline(config.clone()), context.clone()).await.expect("open");
        let provider = match opened.nodes().next().await {
            Some(NodeEvent::Added(_, provider)) => provider,
            other => panic!("expected one node: {other:?}"),
        };
        Self { test_backend, config, context, provider }
    }

    async fn create(&self, name: &str, spec: Value) -> PodRef {
        let mut spec = spec;
        for container in spec["containers"].as_array_mut().expect("containers") {
            container["image"] = json!(IMAGE);
            container["imagePullPolicy"] = json!("IfNotPresent");
        }
        spec["automountServiceAccountToken"] = json!(false);
        spec["terminationGracePeriodSeconds"] = json!(1);
        spec["nodeName"] = json!("limits");
        spec["dnsPolicy"] = json!("Default");
        let metadata = json!({ "name": name, "namespace": "default", "uid": format!("uid-{name}") });
        let pod = json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Pending" } });
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
        self.provider.create_pod(bundle(&pod, true)).await.expect("the pod is created");
        PodRef::of(&pod).expect("a pod with a UID")
    }

    async fn until(&self, pod: &PodRef, what: &str, wanted: impl Fn(&PodStatus) -> bool) -> PodStatus {
        eventually(what, SOON, || async {
            match self.provider.pod_status(pod).await {
                Ok(status) if wanted(&status) => Ok(status),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// A file of a cgroup of this node, in the version 1 hierarchy of a controller or in version 2.
    fn read(&self, controller: &str, path: &str, v1: &str, v2: &str) -> String {
        let unified = HostCgroups::detect(MOUNT_POINT).expect("cgroups").is_unified();
        let (hierarchy, file) = if unified { ("", v2) } else { (controller, v1) };
        let path = format!("{MOUNT_POINT}/{hierarchy}{}{path}/{file}", self.test_backend.cgroup());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
    }

    /// Removes everything; nothing may be left.
    async fn end(self) {
        let Self { test_backend, config, context, provider } = self;
        drop(provider);
        context.supervisor.stop();
        remove_node(Config::Inline(config), context).await.expect("remove everything");
        assert_eq!(test_backend.leftovers(), Vec::<String>::new());
    }
}

fn is_running(status: &PodStatus) -> bool {
    let mut containers = status.container_statuses.iter().flatten().peekable();
    containers.peek().is_some()
        && containers.all(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_container_without_a_limit_is_not_killed_by_the_limit_of_its_neighbour() {
    let node = TestNode::new(&json!({})).await;
    // 48 MiB in memory, beside a container that may have 24 MiB.
    let greedy = "dd if=/dev/zero of=/dev/shm/x bs=1M count=48 2>/dev/null && echo done; sleep 1000";
    let pod = node
        .create(
            "neighbours",
            json!({ "restartPolicy": "Never", "containers": [
                { "name": "small", "command": ["/stay"], "resources": { "limits": { "memory": "24Mi" } } },
                { "name": "greedy", "command": ["/bin/sh", "-c", greedy] },
            ] }),
        )
        .await;
    node.until(&pod, "it runs", is_running).await;
    let limit = node.read("memory", "/burstable/poduid-neighbours", "memory.limit_in_bytes", "memory.max");
    assert!(["9223372036854771712", "max"].contains(&limit.as_str()), "the pod has the limit {limit}");
    let shm = |status: &PodStatus| {
        let greedy = status.container_statuses.iter().flatten().find(|one| one.name == "greedy");
        greedy.and_then(|one| one.state.clone()).unwrap_or_default()
    };
    let logs = node.test_backend.root().join("logs");
    eventually("it has its memory", SOON, || async {
        let status = node.provider.pod_status(&pod).await.map_err(|error| error.report())?;
        assert!(shm(&status).terminated.is_none(), "{status:?}");
        let log = logs.join("default_neighbours_uid-neighbours/greedy/0.log");
        let text = fs::read_to_string(log).unwrap_or_default();
        if text.contains("done") { Ok(()) } else { Err(text) }
    })
    .await;
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_pod_level_limit_holds_for_all_containers_together() {
    let node = TestNode::new(&json!({})).await;
    let fill = "dd if=/dev/zero of=/dev/shm/x bs=1M count=60; exit 5";
    let pod = node
        .create(
            "together",
            json!({
                "restartPolicy": "Never",
                "resources": { "limits": { "memory": "32Mi", "cpu": "500m" } },
                "containers": [
                    { "name": "stay", "command": ["/stay"] },
                    { "name": "fill", "command": ["/bin/sh", "-c", fill] },
                ],
            }),
        )
        .await;
    let status = node
        .until(&pod, "it is killed", |status| {
            let fill = status.container_statuses.iter().flatten().find(|one| one.name == "fill");
            fill.is_some_and(|one| one.state.as_ref().is_some_and(|state| state.terminated.is_some()))
        })
        .await;
    let fill = status.container_statuses.unwrap().into_iter().find(|one| one.name == "fill").unwrap();
    assert_ne!(fill.state.unwrap().terminated.unwrap().exit_code, 0);
    let path = ["/poduid-together", "/burstable/poduid-together"]
        .into_iter()
        .find(|path| {
            HostCgroups::mounted().expect("cgroups").exists(&format!("{}{path}", node.test_backend.cgroup()))
        })
        .expect("the pod has a cgroup");
    assert_eq!(node.read("memory", path, "memory.limit_in_bytes", "memory.max"), (32 << 20).to_string());
    assert!(node.read("cpu", path, "cpu.cfs_quota_us", "cpu.max").starts_with("50000"));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn a_busy_pod_without_requests_leaves_the_processors_to_one_with_requests() {
    let node = TestNode::new(&json!({ "cpu": "500m", "memory": "1Gi" })).await;
    let busy = json!(["/bin/sh", "-c", "for i in 1 2 3 4; do (while :; do :; done) & done; wait"]);
    let asking = node
        .create(
            "asking",
            json!({ "containers": [{
                "name": "main", "command": busy, "resources": { "requests": { "cpu": "500m" } },
            }] }),
        )
        .await;
    let idle = node.create("nothing", json!({ "containers": [{ "name": "main", "command": busy }] })).await;
    for pod in [&asking, &idle] {
        node.until(pod, "it runs", is_running).await;
    }
    // The class weighs as much as its pods request; what is reserved is not for pods.
    assert_eq!(node.read("cpu", "/burstable", "cpu.shares", "cpu.weight"), if v1() { "512" } else { "20" });
    assert_eq!(node.read("cpu", "/besteffort", "cpu.shares", "cpu.weight"), if v1() { "2" } else { "1" });
    let limit: u64 = node.read("memory", "", "memory.limit_in_bytes", "memory.max").parse().unwrap();
    let host = vk_pod_engine::host::Host::local("/").memory().unwrap();
    assert!(limit <= host - (1 << 30) && limit > host - (3 << 30), "{limit} of {host}");
    // Processor time of both classes, over a second of it at a time: what weighs how much reaches all processors of a busy machine with a delay.
    let cgroups = HostCgroups::mounted().expect("cgroups");
    let used = |class: &str| {
        let path = format!("{}/{class}", node.test_backend.cgroup());
        cgroups.usage(&path).and_then(|usage| usage.cpu_nanos).unwrap_or_default()
    };
    let both = || (used("burstable"), used("besteffort"));
    let enough = u64::try_from(Duration::from_secs(1).as_nanos()).unwrap();
    let before = Cell::new(both());
    eventually("the pod with requests has the processors", SOON * 4, || async {
        let now = both();
        let (with, without) = (now.0 - before.get().0, now.1 - before.get().1);
        let shares = format!("with requests: {with} ns, without: {without} ns");
        if with + without < enough {
            return Err(shares);
        }
        before.set(now);
        if with > 4 * without { Ok(()) } else { Err(shares) }
    })
    .await;
    for pod in [&asking, &idle] {
        node.provider.delete_pod(pod, None, Duration::from_secs(1)).await.unwrap();
    }
    eventually("the class weighs nothing again", SOON, || async {
        let shares = node.read("cpu", "/burstable", "cpu.shares", "cpu.weight");
        if shares == (if v1() { "2" } else { "1" }) { Ok(()) } else { Err(shares) }
    })
    .await;
    node.end().await;
}

fn v1() -> bool {
    !HostCgroups::mounted().expect("cgroups").is_unified()
}
