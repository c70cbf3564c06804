//! Pods as the policy meets them.

use serde_json::{Value, json};

use super::{PLACED, by_estimate, gated, pod_for, spec_for};
use crate::live::cluster::{cluster_pair::TAINT, namespace_client::condition};

const OUR_GATE: &str = "multicluster.virtual-kubelet.io/placement";
const FOREIGN_GATE: &str = "kueue.x-k8s.io/admission";

/// The webhook of tensile-kube fails on pods without labels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_pods_without_labels_are_converted_where_their_namespace_opted_in_and_run() {
    let placement = by_estimate().await;
    let pair = placement.node("labels", 1, json!({})).await;
    let (team, other) = (placement.offloaded_team("labels").await, placement.team("labels").await);
    let pod = json!({"metadata": {"name": "web"}, "spec": spec_for(&[&pair.node], 1)});
    for (team, gates) in [(&other, 0), (&team, 1)] {
        let pod = team.upper.create("pods", &pod).await;
        assert!(pod["metadata"]["labels"].is_null(), "{pod}");
        assert_eq!(gated(std::slice::from_ref(&pod)), gates, "{pod}");
    }
    let web = team.upper.get("pods/web").await;
    assert!(web["spec"]["tolerations"].to_string().contains(TAINT), "{web}");
    team.wait_running_on("web", &pair).await;
}

/// Kueue and others decide first, whether a pod may start at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_foreign_gate_is_left_alone_and_ours_goes_last() {
    let placement = by_estimate().await;
    let pair = placement.node("kueue", 1, json!({})).await;
    let team = placement.team("kueue").await;
    let mut first = pod_for(&[&pair.node], "first", 5);
    first["spec"]["schedulingGates"] = json!([{"name": FOREIGN_GATE}]);
    let first = team.upper.create("pods", &first).await;
    assert_eq!(first["spec"]["schedulingGates"], json!([{"name": FOREIGN_GATE}, {"name": OUR_GATE}]));
    // A pod that comes later gets the only place.
    team.upper.create("pods", &pod_for(&[&pair.node], "second", 5)).await;
    team.wait_running_on("second", &pair).await;
    let waits = team.upper.get("pods/first").await;
    assert_eq!(waits["spec"]["schedulingGates"], first["spec"]["schedulingGates"]);
    assert!(condition(&waits, PLACED).is_null(), "nothing was decided about it: {waits}");
    let admitted = json!({"spec": {"schedulingGates": [{"name": OUR_GATE}]}});
    team.upper.patch("pods/first", &admitted).await;
    team.wait_waiting("first", &pair.node).await;
    team.remove("second").await;
    team.wait_running_on("first", &pair).await;
    let runs: Value = team.upper.get("pods/first").await;
    assert!(runs["spec"]["schedulingGates"].is_null(), "{runs}");
}
