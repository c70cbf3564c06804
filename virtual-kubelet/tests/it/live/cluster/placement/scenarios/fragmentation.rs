//! Pods that the sum of a lower cluster would hold, and none of its nodes does.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    LEFT_FREE, SharedPlacement, by_estimate, by_trial, gated, is_stuck, is_unschedulable, occupy, pod_for,
    pod_without_placement, running,
};
use crate::live::cluster::{
    cluster_pair::ClusterPair,
    namespace_client::{NamespaceClient, TIMEOUT, text},
};

/// No lower node has 12 CPUs. Two such pods fit in the sum of three lower nodes, and then nothing else does.
pub(super) const BIG: u32 = 12;
pub(super) const SMALL: u32 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_2712_without_placement_big_pods_are_bound_in_vain_and_by_estimate_they_wait_and_a_small_one_runs()
 {
    let placement = by_estimate().await;
    let pair = placement.node("2712-estimate", 3, json!({})).await;
    big_pods_are_bound_in_vain(placement, &pair).await;
    big_pods_wait_and_a_small_one_runs(placement, &pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_2712_by_trial_big_pods_wait_and_a_small_one_runs() {
    let placement = by_trial().await;
    let pair = placement.node("2712-trial", 3, json!({})).await;
    big_pods_wait_and_a_small_one_runs(placement, &pair).await;
}

async fn big_pods_are_bound_in_vain(placement: &'static SharedPlacement, pair: &ClusterPair<'_>) {
    let team = placement.team("without").await;
    for index in 0..3 {
        let big = pod_without_placement(&[&pair.node], &format!("big-{index}"), BIG);
        team.upper.create("pods", &big).await;
    }
    eventually("two big pods are bound and stuck", TIMEOUT, || async {
        let pods = team.upper.list("pods").await;
        let counts = (count(&pods, is_stuck), count(&pods, is_unschedulable));
        if counts == (2, 1) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    team.upper.create("pods", &pod_without_placement(&[&pair.node], "small", SMALL)).await;
    team.upper.wait_for("pods/small", "finds no node, although a lower one has room", is_unschedulable).await;
    for name in ["small", "big-0", "big-1", "big-2"] {
        team.remove(name).await;
    }
}

async fn big_pods_wait_and_a_small_one_runs(placement: &'static SharedPlacement, pair: &ClusterPair<'_>) {
    let team = placement.team("2712").await;
    let names = ["big-0", "big-1", "big-2"];
    for name in names {
        team.upper.create("pods", &pod_for(&[&pair.node], name, BIG)).await;
    }
    for name in names {
        team.wait_waiting(name, &format!("{}: 0 of 3 lower nodes (3 insufficient cpu)", pair.node)).await;
    }
    team.upper.create("pods", &pod_for(&[&pair.node], "small", SMALL)).await;
    team.wait_running_on("small", pair).await;
    assert_eq!(gated(&team.upper.list("pods").await), 3);
    assert_eq!(team.lower.list("pods").await.len(), 1, "the big pods have never been in the lower cluster");
}

/// What was free when the scheduler of another cluster looked is taken by pods that it has just placed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn karmada_6783_pods_of_a_whole_lower_node_each_all_run_and_none_waits_in_a_lower_cluster() {
    let placement = by_estimate().await;
    let free: u16 = if cfg!(feature = "e2e") { 50 } else { 10 };
    // What others leave free of the first cluster looks like three whole lower nodes more.
    let fragments: u16 = 8;
    let other = by_trial().await.upper();
    let (first, second) = tokio::join!(
        placement.node("6783-a", free + fragments, json!({})),
        ClusterPair::open(placement.upper(), other, "6783-b", free, json!({}), &[]),
    );
    occupy(&first, free..free + fragments, 8 - LEFT_FREE).await;
    let sum = u32::from(free) * 8 + u32::from(fragments) * LEFT_FREE;
    super::offers(placement.upper(), &first.node, &json!({"cpu": sum.to_string()})).await;
    let nodes = [&*first.node, &*second.node];
    let pods = usize::from(2 * free);

    let without = placement.team("6783-without").await;
    for index in 0..pods {
        let pod = pod_without_placement(&nodes, &format!("whole-{index}"), 8);
        without.upper.create("pods", &pod).await;
    }
    eventually("pods are stuck in the first cluster, and the second has room", TIMEOUT, || async {
        let pods = without.upper.list("pods").await;
        if pods.iter().any(is_stuck) { Ok(()) } else { Err(format!("{} run", running(&pods))) }
    })
    .await;
    without.upper.kubectl(&["delete", "pods", "--all", "--grace-period=1"]).await;
    let below = [&without.lower, &NamespaceClient::new(other, &without.lower.namespace)];
    eventually("nothing is left of them", TIMEOUT, || async {
        let left = below[0].list("pods").await.len() + below[1].list("pods").await.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} pods")) }
    })
    .await;

    let team = placement.team("6783").await;
    for index in 0..pods {
        team.upper.create("pods", &pod_for(&nodes, &format!("whole-{index}"), 8)).await;
    }
    team.upper.create("pods", &pod_for(&nodes, "one-too-many", 8)).await;
    eventually("all run that have a lower node", TIMEOUT, || async {
        let all = team.upper.list("pods").await;
        let counts = (running(&all), gated(&all));
        if counts == (pods, 1) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    for below in [&team.lower, &NamespaceClient::new(other, &team.lower.namespace)] {
        assert_eq!(waited(below).await, Vec::<String>::new());
    }
    assert!(!waited(below[0]).await.is_empty(), "the lower scheduler says which pods had to wait");
}

/// The pods for which the lower scheduler found no node at first.
pub(super) async fn waited(below: &NamespaceClient<'_>) -> Vec<String> {
    let events = below.list("events").await;
    let failed = events.iter().filter(|event| event["reason"] == "FailedScheduling");
    // A pod may have several events.
    let names: BTreeSet<&str> = failed.map(|event| text(&event["involvedObject"]["name"])).collect();
    names.into_iter().map(ToOwned::to_owned).collect()
}

pub(super) fn count(pods: &[Value], is_counted: impl Fn(&Value) -> bool) -> usize {
    pods.iter().filter(|pod| is_counted(pod)).count()
}
