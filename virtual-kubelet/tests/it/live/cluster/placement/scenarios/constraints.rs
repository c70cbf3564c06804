//! What the lower cluster demands, and what pods demand of it.

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    PLACED, USED_BY_OTHERS, by_estimate, by_trial, create_namespace, gated, is_unschedulable, pod_for,
    pod_without_placement, running, spec,
};
use crate::live::{
    becomes_ready,
    cluster::{
        cluster_pair::named_mock_nodes,
        namespace_client::{NamespaceClient, TIMEOUT, condition},
    },
};

const DISK: &str = "scenario/disk";

/// Pods over their quota leave what is free to other namespaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_3007_pods_over_a_lower_quota_wait_and_take_nothing_from_other_namespaces() {
    let placement = by_estimate().await;
    let pair = placement.node("quota", 1, json!({})).await;
    let (limited, free) = (placement.team("limited").await, placement.team("free").await);
    create_namespace(&limited.lower, &json!({})).await;
    let quota = json!({"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "2"}}});
    limited.lower.create("resourcequotas", &quota).await;
    let is_counted = |quota: &Value| quota["status"]["used"]["requests.cpu"] == "0";
    limited.lower.wait_for("resourcequotas/team", "is counted", is_counted).await;

    limited.upper.create("pods", &pod_for(&[&pair.node], "first", 2)).await;
    limited.wait_running_on("first", &pair).await;
    let waiting = ["second", "third", "fourth"];
    for name in waiting {
        limited.upper.create("pods", &pod_for(&[&pair.node], name, 1)).await;
    }
    for name in waiting {
        let why = format!("{}: quota \"team\" has 0 of 2 requests.cpu left", pair.node);
        limited.wait_waiting(name, &why).await;
    }
    // Without placement all four would be bound, and not enough of the sum would be left.
    free.upper.create("pods", &pod_for(&[&pair.node], "other", 6)).await;
    free.wait_running_on("other", &pair).await;
    limited.remove("first").await;
    eventually("two others run", TIMEOUT, || async {
        let pods = limited.upper.list("pods").await;
        let counts = (running(&pods), gated(&pods));
        if counts == (2, 1) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
}

/// A lower cluster that adds nodes refuses no pod for want of room, and a trial shows whether it does add one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1478_a_pod_is_tried_in_a_cluster_that_adds_nodes_and_bound_once_there_is_one() {
    let placement = by_trial().await;
    let (pair, _others) = placement.fragmented_node("autoscales", 2, json!({"autoscales": true})).await;
    let team = placement.team("autoscales").await;
    team.upper.create("pods", &pod_for(&[&pair.node], "web", USED_BY_OTHERS)).await;
    let is_unscheduled = |pod: &Value| condition(pod, "PodScheduled")["status"] == "False";
    team.lower.wait_for("pods/web", "makes the autoscaler add a node", is_unscheduled).await;
    let upper = team.upper.get("pods/web").await;
    assert_eq!(
        gated(std::slice::from_ref(&upper)),
        1,
        "it takes no room before the lower cluster has any: {upper}"
    );
    // The autoscaler.
    let _added = named_mock_nodes(pair.lower, &pair.node, "autoscales-added", 1);
    becomes_ready(pair.lower, "autoscales-added-0").await;
    let below = team.wait_running_on("web", &pair).await;
    assert_eq!(below["spec"]["nodeName"], "autoscales-added-0");
    assert_eq!(condition(&team.upper.get("pods/web").await, PLACED)["reason"], "Tried");
}

/// A scheduler of the lower cluster that we know nothing about decides, and until it has, the pod is on no node of the upper cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_5_and_82_a_pod_for_another_lower_scheduler_is_bound_once_that_has_chosen_a_lower_node() {
    let placement = by_trial().await;
    let pair = placement.node("scheduler", 2, json!({"allow": {"schedulers": ["batch"]}})).await;
    let team = placement.team("scheduler").await;
    let mut pod = pod_for(&[&pair.node], "web", 1);
    pod["metadata"]["annotations"] =
        json!({"multicluster.virtual-kubelet.io/lower": json!({"schedulerName": "batch"}).to_string()});
    team.upper.create("pods", &pod).await;
    let below = team.lower.wait_exists("pods/web").await;
    assert_eq!(below["spec"]["schedulerName"], "batch", "{below}");
    // A pod that the usual scheduler places gets ahead of it.
    team.upper.create("pods", &pod_for(&[&pair.node], "usual", 1)).await;
    team.wait_running_on("usual", &pair).await;
    let upper = team.upper.get("pods/web").await;
    assert_eq!(gated(std::slice::from_ref(&upper)), 1, "{upper}");
    assert!(upper["spec"]["nodeName"].is_null(), "{upper}");
    // What a scheduler does.
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": pair.lower_node(1)});
    let binding =
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"}, "target": target});
    team.lower.create("pods/web/binding", &binding).await;
    let below = team.wait_running_on("web", &pair).await;
    assert_eq!(below["spec"]["nodeName"], json!(pair.lower_node(1)));
}

/// The rules of namespaces are known before a pod is bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_119_pods_go_to_a_cluster_that_takes_their_namespace() {
    let placement = by_estimate().await;
    let (large, small) = tokio::join!(
        placement.node("119-large", 3, json!({"namespaces": {"scenario-119": "scenario-119"}})),
        placement.node("119-small", 1, json!({})),
    );
    let team = placement.team("119").await;
    let nodes = [&*large.node, &*small.node];
    // kube-scheduler prefers the emptiest, where it cannot run.
    team.upper.create("pods", &pod_without_placement(&nodes, "without", 1)).await;
    team.upper.wait_event("without", &[&team.upper.namespace, "namespace"]).await;
    let without = team.upper.get("pods/without").await;
    assert_eq!(without["spec"]["nodeName"], json!(large.node), "{without}");

    team.upper.create("pods", &pod_for(&nodes, "web", 1)).await;
    team.wait_running_on("web", &small).await;
    team.upper.create("pods", &pod_for(&[&large.node], "nowhere", 1)).await;
    team.wait_waiting("nowhere", &format!("{}: namespace {}", large.node, team.upper.namespace)).await;
}

/// Some constraints are about clusters, others about their machines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_127_upper_constraints_choose_the_cluster_and_lower_ones_the_lower_node() {
    let placement = by_estimate().await;
    let (first, second) =
        tokio::join!(placement.node("127-a", 2, json!({})), placement.node("127-b", 2, json!({})));
    let team = placement.team("127").await;
    let below = NamespaceClient::new(first.lower, "default");
    let fast = json!({"metadata": {"labels": {DISK: "ssd"}}});
    for node in [first.lower_node(0), second.lower_node(1)] {
        below.patch(&format!("nodes/{node}"), &fast).await;
    }
    let pod = |name: &str, disk: &str| {
        let mut pod = pod_for(&[&second.node], name, 1);
        pod["spec"] = spec(1);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": second.node, DISK: disk});
        pod
    };
    let mut without = pod("without", "ssd");
    without["metadata"]["labels"] = json!({});
    without["spec"]["tolerations"] = super::tolerations();
    team.upper.create("pods", &without).await;
    team.upper.create("pods", &pod("web", "ssd")).await;
    let lower = team.wait_running_on("web", &second).await;
    assert_eq!(lower["spec"]["nodeName"], json!(second.lower_node(1)));
    assert_eq!(lower["spec"]["nodeSelector"][DISK], "ssd", "{lower}");
    assert!(lower["spec"]["nodeSelector"]["kubernetes.io/hostname"].is_null(), "{lower}");
    team.upper.create("pods", &pod("nowhere", "nvme")).await;
    team.wait_waiting("nowhere", &format!("{}: 0 of 2 lower nodes (", second.node)).await;
    team.upper.wait_for("pods/without", "finds no node: virtual nodes have no disk", is_unschedulable).await;
}
