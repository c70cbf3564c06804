//! The cluster's own machines first, and another cluster for what does not fit on them.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use vk_supervisor::Clock;
use vk_testing::eventually;

use super::{PLACED, Team, by_estimate, pod_for, pod_without_placement};
use crate::live::cluster::{
    capacity::join,
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
};

/// Nodes without a heartbeat are lost after 50 seconds.
const HEARTBEAT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1353_and_admiralty_201_with_local_first_in_the_order_a_virtual_node_gets_what_does_not_fit_on_machines()
 {
    let placement = by_estimate().await;
    let pair = placement.node("overflow", 4, json!({})).await;
    let team = placement.team("overflow").await;
    let all = placement.cluster_scope();
    let allocatable = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
    let machine = join(&all, "overflow", &allocatable).await;
    tokio::select! {
        () = fill(&team, &machine, &pair.node) => {}
        () = send_heartbeats(&all, &machine) => {}
    }
    all.delete(&format!("nodes/{machine}"), None).await;
}

async fn fill(team: &Team, machine: &str, virtual_node: &str) {
    let nodes = [machine, virtual_node];
    // kube-scheduler prefers the node with the larger part free: the sum of another cluster.
    team.upper.create("pods", &pod_without_placement(&nodes, "attracted", 1)).await;
    let bound = team.upper.wait_running("attracted").await;
    assert_eq!(text(&bound["spec"]["nodeName"]), virtual_node);
    team.remove("attracted").await;

    for index in 0..10 {
        team.upper.create("pods", &pod_for(&nodes, &format!("pod-{index}"), 2)).await;
    }
    let counts = eventually("all pods have a node", TIMEOUT, || async {
        let counts = pods_by_node(&team.upper).await;
        if counts.values().sum::<usize>() == 10 { Ok(counts) } else { Err(format!("{counts:?}")) }
    })
    .await;
    assert_eq!(counts, BTreeMap::from([(machine.to_owned(), 4), (virtual_node.to_owned(), 6)]));
    // What becomes free on the machine is used before the virtual node.
    let pods = team.upper.list("pods").await;
    let local = pods.iter().find(|pod| text(&pod["spec"]["nodeName"]) == machine).unwrap();
    team.upper.delete(&format!("pods/{}", text(&local["metadata"]["name"])), Some(0)).await;
    team.upper.create("pods", &pod_for(&nodes, "late", 2)).await;
    let late =
        team.upper.wait_for("pods/late", "has a node", |pod| pod["spec"]["nodeName"].is_string()).await;
    assert_eq!(text(&late["spec"]["nodeName"]), machine);

    // `placement explain` says of machines what the event says.
    team.upper.create("pods", &pod_for(&nodes, "big", 9)).await;
    let of_machines = |pod: &Value| {
        let message = condition(pod, PLACED)["message"].clone();
        text(&message).split("; ").find(|part| part.starts_with("local: ")).map(str::to_owned)
    };
    let big = team.upper.wait_for("pods/big", "says why it waits", |pod| of_machines(pod).is_some()).await;
    let said = of_machines(&big).unwrap();
    assert!(said.starts_with("local: 0 of ") && said.contains("1 insufficient cpu"), "{said}");
    team.wait_waiting("big", &said).await;
}

async fn pods_by_node(client: &NamespaceClient<'_>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in client.list("pods").await {
        if let Some(node) = pod["spec"]["nodeName"].as_str() {
            *counts.entry(node.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Does what the kubelet of a machine does, for as long as the test takes.
pub(super) async fn send_heartbeats(all: &NamespaceClient<'_>, machine: &str) {
    let mut interval = tokio::time::interval(HEARTBEAT);
    loop {
        interval.tick().await;
        let mut conditions: Value =
            all.get(&format!("nodes/{machine}")).await["status"]["conditions"].clone();
        conditions[0]["lastHeartbeatTime"] = json!(Clock::system().now());
        all.patch(&format!("nodes/{machine}/status"), &json!({"status": {"conditions": conditions}})).await;
    }
}
