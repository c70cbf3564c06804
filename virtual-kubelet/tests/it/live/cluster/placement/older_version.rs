//! Placement in an upper cluster of an older version, whose kube-scheduler does not try nominated nodes first: a node selector names the node.

use serde_json::{Value, json};
use vk_testing::control_plane::Options;

use super::{PLACED, PlacementTest, placement, spec};
use crate::live::cluster::{
    cluster_pair::{ClusterPair, TAINT, lower},
    namespace_client::{NamespaceClient, condition},
    version_skew::programs,
};

/// A pod as conversion leaves it.
fn converted(name: &str, cpu: u32) -> Value {
    let mut spec = spec(cpu);
    spec["tolerations"] = json!([{"key": TAINT, "operator": "Exists"}]);
    spec["schedulingGates"] = json!([{"name": "multicluster.virtual-kubelet.io/placement"}]);
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make e2e-placement"]
async fn in_a_cluster_of_1_33_a_node_selector_binds_pods_to_the_node_that_was_chosen_by_estimate() {
    Box::pin(place("estimate", "Estimated")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make e2e-placement"]
async fn in_a_cluster_of_1_33_a_node_selector_binds_pods_to_the_node_that_has_tried_them() {
    Box::pin(place("trial", "Tried")).await;
}

async fn place(gates: &str, reason: &str) {
    let options = Options { programs: Some(programs()), ..Options::with_controllers() };
    let test = PlacementTest::without_policy(options).await;
    let name = |suffix: &str| format!("older-{gates}-{suffix}");
    let order = format!("vk-{},vk-{}", name("a"), name("b"));
    let process = placement(&test.account().await, &["--gates", gates, "--order", &order]);
    let first = ClusterPair::open(&test.upper, lower().await, &name("a"), 1, json!({}), &[]).await;
    // kube-scheduler would prefer this one.
    let second = ClusterPair::open(&test.upper, lower().await, &name("b"), 4, json!({}), &[]).await;
    let version = NamespaceClient::new(&test.upper, "default").kubectl(&["version", "-o", "json"]).await;
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(version["serverVersion"]["minor"], "33", "{version}");
    let team = test.namespace(&name("team")).await;
    for (pod, cpu, node) in [("one", 5, &first.node), ("two", 5, &second.node), ("three", 2, &first.node)] {
        team.create("pods", &converted(pod, cpu)).await;
        let placed = team.wait_running(pod).await;
        assert_eq!(placed["spec"]["nodeName"], json!(node), "{placed}");
        assert_eq!(placed["spec"]["nodeSelector"]["kubernetes.io/hostname"], json!(node), "{placed}");
        team.wait_for(&format!("pods/{pod}"), "says how", |pod| condition(pod, PLACED)["reason"] == reason)
            .await;
    }
    team.create("pods", &converted("big", 9)).await;
    team.wait_event("big", &["NoFeasibleNode", "0 of 2 nodes"]).await;
    // Lists cannot be streamed in this version, which the API server calls forbidden.
    let log = process.stderr();
    let log: String = log.lines().filter(|line| !line.contains("sendInitialEvents")).collect();
    assert!(!log.contains("orbidden") && !log.contains("placement may"), "{log}");
}
