//! Several nodes in one process.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use vk_kube::{Client, Metrics, Objects, Selector};
use vk_testing::{ControlPlane, control_plane, eventually, kubectl};

use super::{SOON, becomes_ready, exists, kubelet_port, node, ports, ready, run};

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn each_of_many_nodes_has_its_own_size_and_port() {
    let cluster = ControlPlane::shared().await;
    let (port, base) = (ports(3), ports(5));
    let file = format!(
        "port: {port}\nnodes:\n\
         - {{name: fleet-a, providerConfig: {{cpu: '2'}}}}\n\
         - {{name: fleet-b, providerConfig: {{cpu: '4'}}}}\n\
         - {{name: fleet-c, providerConfig: {{cpu: '8'}}}}\n\
         - {{count: 5, namePattern: 'fleet-small-{{}}', portBase: {base}, labels: {{size: small}}}}\n"
    );
    let mut process = run(cluster, &["--no-port"]).file(&file).start();
    let mut seen = BTreeSet::new();
    for (name, cpu) in [("fleet-a", "2"), ("fleet-b", "4"), ("fleet-c", "8")] {
        let node = becomes_ready(cluster, name).await;
        assert_eq!(node["status"]["capacity"]["cpu"], cpu, "{name}");
        seen.insert(kubelet_port(&node));
    }
    for index in 0..5 {
        let node = becomes_ready(cluster, &format!("fleet-small-{index}")).await;
        assert_eq!(node["metadata"]["labels"]["size"], "small");
        assert_eq!(kubelet_port(&node), u64::from(base) + index);
        seen.insert(kubelet_port(&node));
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    assert!(seen.contains(&port.into()), "{seen:?}");

    let before = node(cluster, "fleet-small-3").await;
    let deleted = kubectl(cluster, ["delete", "node", "fleet-small-3"]).await.unwrap();
    assert!(deleted.success(), "{deleted:?}");
    eventually("the deleted node comes back", SOON, || async {
        if !exists(cluster, "fleet-small-3").await {
            return Err("it is not there".to_owned());
        }
        let node = node(cluster, "fleet-small-3").await;
        let fresh = node["metadata"]["uid"] != before["metadata"]["uid"];
        if fresh && ready(&node)["status"] == "True" { Ok(()) } else { Err(ready(&node).to_string()) }
    })
    .await;

    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);
    for name in ["fleet-a", "fleet-b", "fleet-c", "fleet-small-0", "fleet-small-3", "fleet-small-4"] {
        assert_eq!(ready(&node(cluster, name).await)["reason"], "NodeShutdown", "{name}");
    }
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn no_node_is_touched_when_another_cannot_be_started() {
    let cluster = ControlPlane::shared().await;
    // One that is refused at once, and one that is waited for while the others could be registered.
    for (name, config, code, words) in [
        ("wrong", "{cpu: lots}", 2, ["node wrong", "cpu", "lots"]),
        ("absent", "{backend: nowhere.sock}", 1, ["node absent", "provider mock", "nowhere.sock"]),
    ] {
        let port = ports(4);
        let file = format!(
            "port: {port}\nnodes:\n\
             - {{count: 3, namePattern: 'spared-{{}}'}}\n\
             - {{name: {name}, providerConfig: {config}}}\n"
        );
        let run = run(cluster, &["--no-port", "--startup-timeout", "1s"]).file(&file);
        run.start().end(SOON).await.failed(code, &words);
        for name in ["spared-0", "spared-2", name] {
            assert!(!exists(cluster, name).await, "{name}");
        }
    }
}

/// Watches on pods that are open at the API server.
async fn pod_watches(cluster: &ControlPlane) -> u64 {
    let metrics = kubectl(cluster, ["get", "--raw", "/metrics"]).await.unwrap();
    let is = |line: &&str| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("resource=\"pods\"")
            && line.contains("verb=\"WATCH\"")
    };
    metrics.stdout.lines().filter(is).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_pods_of_many_nodes_come_by_one_watch() {
    const NODES: usize = 30;
    let cluster = &ControlPlane::start(control_plane::Options::default()).await.unwrap();
    let namespace = cluster.namespace("many").await.unwrap();
    let pods: Objects<Pod> = Objects::namespaced(
        Client::fixed(cluster.admin().unwrap(), Metrics::default()),
        namespace.name().to_owned(),
    );
    let bind = async |name: String, node: usize| {
        let spec = json!({
            "nodeName": format!("many-{node}"), "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}],
        });
        pods.create(&serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
            .await
            .unwrap();
    };
    // Half of them are there before the process is.
    for node in 0..NODES / 2 {
        bind(format!("early-{node}"), node).await;
    }
    let others = pod_watches(cluster).await;
    let base = ports(u16::try_from(NODES).unwrap());
    let file = format!("nodes:\n- {{count: {NODES}, namePattern: 'many-{{}}', portBase: {base}}}\n");
    let mut process = run(cluster, &["--no-port"]).file(&file).start();
    for node in 0..NODES {
        becomes_ready(cluster, &format!("many-{node}")).await;
        bind(format!("late-{node}"), node).await;
    }
    eventually("all pods run", SOON, || async {
        let all = pods.list(&Selector::default()).await.map_err(|error| error.to_string())?.objects;
        let phase = |pod: &Pod| pod.status.clone().unwrap_or_default().phase.unwrap_or_default();
        let running = all.iter().filter(|pod| phase(pod) == "Running").count();
        if running == NODES + NODES / 2 { Ok(()) } else { Err(format!("{running} of {}", all.len())) }
    })
    .await;
    assert_eq!(pod_watches(cluster).await, others + 1);
    assert_eq!(process.stop(Duration::from_secs(10)).await.code, 0);
}
