//! Pods of high priority.

use serde_json::{Value, json};

use super::{by_estimate, by_trial, occupy, offers, pod_for, pod_without_placement};
use crate::live::cluster::namespace_client::NamespaceClient;

pub(super) fn priority_class(name: &str) -> Value {
    json!({"metadata": {"name": name}, "value": 1000})
}

pub(super) fn with_priority(mut pod: Value, class: &str) -> Value {
    pod["spec"]["priorityClassName"] = json!(class);
    pod
}

/// kube-scheduler makes room in the sum, where the pod does not run either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_of_high_priority_that_fit_on_no_lower_node_preempt_nobody_behind_gates_and_in_vain_without() {
    const CLASS: &str = "scenario-in-vain";
    let placement = by_estimate().await;
    let pair = placement.node("in-vain", 2, json!({})).await;
    let team = placement.team("in-vain").await;
    placement.cluster_scope().create("priorityclasses", &priority_class(CLASS)).await;
    // 12 of 16 CPUs.
    for index in 0..6 {
        team.upper.create("pods", &pod_for(&[&pair.node], &format!("low-{index}"), 2)).await;
    }
    for index in 0..6 {
        team.wait_running_on(&format!("low-{index}"), &pair).await;
    }
    team.upper.create("pods", &with_priority(pod_for(&[&pair.node], "high", 12), CLASS)).await;
    team.wait_waiting("high", &pair.node).await;
    // kube-scheduler has had time to preempt others when it has bound this one.
    team.upper.create("pods", &pod_without_placement(&[&pair.node], "later", 1)).await;
    team.wait_running_on("later", &pair).await;
    assert_eq!(low(&team.upper).await, 6, "all of low priority are left alone");

    team.upper
        .create("pods", &with_priority(pod_without_placement(&[&pair.node], "without", 12), CLASS))
        .await;
    team.wait_stuck("without").await;
    assert!(low(&team.upper).await < 6, "some were preempted, in vain");
}

/// The number of pods of low priority that nobody deletes.
pub(super) async fn low(client: &NamespaceClient<'_>) -> usize {
    let pods = client.list("pods").await;
    let is_low = |pod: &&Value| {
        pod["metadata"]["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("low-") || name.starts_with("other-"))
            && pod["metadata"]["deletionTimestamp"].is_null()
            && pod["status"]["phase"] == "Running"
    };
    pods.iter().filter(is_low).count()
}

/// Admiralty has a candidate in each cluster, and each of them preempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_97_a_pod_of_high_priority_preempts_in_one_cluster_only() {
    const CLASS: &str = "scenario-97";
    let placement = by_trial().await;
    placement.cluster_scope().create("priorityclasses", &priority_class(CLASS)).await;
    let config = json!({"autoscales": true, "allow": {"priorityClasses": [CLASS]}});
    let (first, second) =
        tokio::join!(placement.node("97-a", 2, config.clone()), placement.node("97-b", 2, config));
    NamespaceClient::new(first.lower, "default").create("priorityclasses", &priority_class(CLASS)).await;
    let mut others = Vec::new();
    for pair in [&first, &second] {
        others.push(occupy(pair, 0..2, 4).await);
        offers(placement.upper(), &pair.node, &json!({"cpu": "8"})).await;
    }
    for other in &others {
        for name in ["other-0", "other-1"] {
            other.wait_running(name).await;
        }
    }
    let team = placement.team("97").await;
    let nodes = [&*first.node, &*second.node];
    // Every lower node has 4 CPUs for it.
    team.upper.create("pods", &with_priority(pod_for(&nodes, "high", 8), CLASS)).await;
    let high = team.upper.wait_running("high").await;
    let (chosen, other) = if high["spec"]["nodeName"] == json!(first.node) { (0, 1) } else { (1, 0) };
    assert!(low(&others[chosen]).await < 2, "it has preempted a pod where it runs");
    assert_eq!(low(&others[other]).await, 2, "and none elsewhere");
    assert_eq!(team.lower.list("pods").await.len(), 1);
}
