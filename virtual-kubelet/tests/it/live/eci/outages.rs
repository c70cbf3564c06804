//! What breaks while pods run: the cloud, the API server, the process.

use std::collections::BTreeMap;

use serde_json::Value;
use vk_testing::{
    ControlPlane,
    cloud::eci::{Fault, Rule},
    control_plane::Options,
    eventually,
};

use super::{
    super::{becomes, becomes_ready},
    EciNode, LATER,
};

/// Groups by their id, and what they are.
fn groups(node: &EciNode<'_>) -> BTreeMap<String, String> {
    node.emulator.groups().into_iter().map(|group| (group.id, group.status)).collect()
}

fn creates(node: &EciNode<'_>) -> u64 {
    node.emulator.calls().get("CreateContainerGroup").map_or(0, |count| count.total - count.refused)
}

async fn pods(node: &EciNode<'_>, count: usize) {
    for number in 0..count {
        node.apply(&node.pod(&format!("pod-{number}"), "sleep 3600")).await;
    }
}

async fn all_ready(node: &EciNode<'_>) {
    node.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn an_outage_of_the_cloud_is_shown_by_the_node_and_changes_no_pod() {
    let node = EciNode::start(ControlPlane::shared().await, "cloud-outage").await;
    pods(&node, 3).await;
    all_ready(&node).await;
    let before = groups(&node);
    let fault = Fault::Error { status: 503, code: "ServiceUnavailable".to_owned(), retry_after: None };
    node.emulator.add_fault(Rule::always(fault));
    let unready = eventually("the node is not Ready", LATER, || async {
        let ready = super::super::ready(&super::super::node(node.cluster, &node.name).await);
        if ready["status"] == "False" { Ok(ready) } else { Err(ready.to_string()) }
    })
    .await;
    assert!(unready["message"].as_str().unwrap().contains("ServiceUnavailable"), "{unready}");
    node.apply(&node.pod("meanwhile", "sleep 3600")).await;
    node.emulator.clear_faults();
    becomes_ready(node.cluster, &node.name).await;
    all_ready(&node).await;
    let after = groups(&node);
    assert!(before.keys().all(|id| after.contains_key(id)), "{before:?} {after:?}");
    assert_eq!(after.len(), 4);
    node.agrees().await;
    node.close().await;
}

/// It takes until the next full list. The suite of the engine shows the same on a simulated clock.
#[cfg(feature = "e2e")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make e2e-groups"]
async fn groups_that_seem_to_vanish_at_once_are_not_created_again() {
    let node = EciNode::start(ControlPlane::shared().await, "permission").await;
    pods(&node, 3).await;
    all_ready(&node).await;
    let made = creates(&node);
    for action in ["DescribeContainerGroups", "DescribeContainerGroupStatus", "DescribeContainerGroupEvents"]
    {
        node.emulator.deny(action, true);
    }
    eventually("the node says that the cloud is not reachable", 5 * LATER, || async {
        let node = super::super::node(node.cluster, &node.name).await;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let reachable =
            conditions.into_iter().find(|each| each["type"] == "CloudReachable").unwrap_or_default();
        if reachable["status"] == "False" { Ok(()) } else { Err(reachable.to_string()) }
    })
    .await;
    let running = "jsonpath={.items[*].status.phase}";
    assert_eq!(node.kubectl(&["get", "pods", "-o", running]).await, "Running Running Running");
    for action in ["DescribeContainerGroups", "DescribeContainerGroupStatus", "DescribeContainerGroupEvents"]
    {
        node.emulator.deny(action, false);
    }
    becomes_ready(node.cluster, &node.name).await;
    assert_eq!(creates(&node), made);
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn an_outage_of_the_api_server_changes_no_group() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let node = EciNode::start(&cluster, "api-outage").await;
    pods(&node, 3).await;
    all_ready(&node).await;
    let before = groups(&node);
    cluster.kill_api_server().await.unwrap();
    // One ends while nobody can be told.
    let ended = before.keys().next().unwrap();
    assert!(node.emulator.reclaim(ended));
    cluster.start_api_server().await.unwrap();
    becomes_ready(&cluster, &node.name).await;
    eventually("the end of the pod is told", LATER, || async {
        let pods = node.get("pods").await;
        let phases: Vec<&Value> =
            pods["items"].as_array().unwrap().iter().map(|pod| &pod["status"]["phase"]).collect();
        if phases.iter().filter(|phase| **phase == "Running").count() == 2 {
            Ok(())
        } else {
            Err(format!("{phases:?}"))
        }
    })
    .await;
    let after = groups(&node);
    assert!(after.iter().all(|(id, _)| before.contains_key(id)), "{before:?} {after:?}");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn ten_kills_lose_and_duplicate_nothing() {
    let mut node = EciNode::start(ControlPlane::shared().await, "kills").await;
    node.emulator.add_fault(Rule::always(Fault::ResetAfter).of("CreateContainerGroup").with_probability(0.2));
    for kill in 0..10 {
        for number in 0..2 {
            node.apply(&node.pod(&format!("pod-{kill}-{number}"), "sleep 3600")).await;
        }
        if kill > 1 {
            node.kubectl(&["delete", &format!("pod/pod-{}-0", kill - 2), "--wait=false"]).await;
        }
        let made = creates(&node);
        eventually("it creates something", LATER, || async {
            if creates(&node) > made || made > 2 * kill { Ok(()) } else { Err("nothing yet") }
        })
        .await;
        node.process.take().unwrap().kill();
        node.process = Some(node.launch(&[]));
    }
    node.emulator.clear_faults();
    becomes_ready(node.cluster, &node.name).await;
    all_ready_but_deleted(&node).await;
    node.agrees().await;
    node.close().await;
}

async fn all_ready_but_deleted(node: &EciNode<'_>) {
    eventually("all pods run that are not deleted", LATER, || async {
        let pods = node.get("pods").await["items"].as_array().unwrap().clone();
        let is_right = |pod: &Value| {
            pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running"
        };
        if pods.len() == 12 && pods.iter().all(is_right) {
            return Ok(());
        }
        Err(pods
            .iter()
            .map(|pod| format!("{} {}", pod["metadata"]["name"], pod["status"]["phase"]))
            .collect::<Vec<_>>()
            .join(", "))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root: make test"]
async fn a_second_replica_takes_over_without_a_second_group() {
    let mut node = EciNode::start(ControlPlane::shared().await, "replicas").await;
    // Both compete for the node.
    node.process.take().unwrap().stop(LATER).await;
    let short = ["--leader-elect"];
    let mut first = node.launch(&short);
    becomes_ready(node.cluster, &node.name).await;
    let second = node.launch(&short);
    pods(&node, 3).await;
    all_ready(&node).await;
    let before = groups(&node);
    first.kill();
    becomes(node.cluster, &node.name, "True", "KubeletReady", LATER).await;
    node.apply(&node.pod("later", "sleep 3600")).await;
    node.kubectl(&["wait", "--for=condition=Ready", "pod/later", "--timeout=120s"]).await;
    let after = groups(&node);
    assert!(before.keys().all(|id| after.contains_key(id)), "{before:?} {after:?}");
    assert_eq!(after.len(), 4);
    node.agrees().await;
    node.process = Some(second);
    node.close().await;
}
