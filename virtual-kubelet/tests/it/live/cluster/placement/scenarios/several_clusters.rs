//! Several lower clusters, and clusters that are nodes of each other.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{
    OFFLOAD, by_estimate, by_trial, create_namespace, gated, is_unschedulable, pod_for,
    pod_without_placement, running, spec_for,
};
use crate::live::cluster::{
    cluster_pair::{ClusterPair, ORIGIN, SITE, TAINT},
    namespace_client::{NamespaceClient, TIMEOUT, text},
};

/// Updates and deletions reach the lower cluster of each pod, whichever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_56_pods_of_one_deployment_in_two_lower_clusters_are_updated_and_deleted_in_both() {
    let placement = by_estimate().await;
    let other = by_trial().await.upper();
    let (first, second) = tokio::join!(
        placement.node("56-a", 1, json!({})),
        ClusterPair::open(placement.upper(), other, "56-b", 1, json!({}), &[]),
    );
    let team = placement.team("56").await;
    let second_below = NamespaceClient::new(other, &team.upper.namespace);
    let deployment = json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 4,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web", "virtual-pod": "true"}},
            "spec": spec_for(&[&first.node, &second.node], 4),
        },
    }});
    team.upper.create("deployments", &deployment).await;
    let pods = eventually("all run", TIMEOUT, || async {
        let pods = team.upper.list("pods").await;
        if running(&pods) == 4 { Ok(pods) } else { Err(format!("{} run", running(&pods))) }
    })
    .await;
    let mut counts = BTreeMap::new();
    for pod in &pods {
        *counts.entry(text(&pod["spec"]["nodeName"])).or_insert(0) += 1;
        let name = format!("pods/{}", text(&pod["metadata"]["name"]));
        team.upper.patch(&name, &json!({"metadata": {"labels": {"revision": "new"}}})).await;
    }
    assert_eq!(counts, BTreeMap::from([(&*first.node, 2), (&*second.node, 2)]));
    for below in [&team.lower, &second_below] {
        eventually("both pods are updated", TIMEOUT, || async {
            let pods = below.list("pods").await;
            let updated = pods.iter().filter(|pod| pod["metadata"]["labels"]["revision"] == "new").count();
            if updated == 2 { Ok(()) } else { Err(format!("{pods:?}")) }
        })
        .await;
    }
    team.upper.patch("deployments/web", &json!({"spec": {"replicas": 0}})).await;
    eventually("nothing is left in any of the clusters", TIMEOUT, || async {
        let mut left = Vec::new();
        for client in [&team.upper, &team.lower, &second_below] {
            left.push(client.list("pods").await.len());
        }
        if left == [0; 3] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// Each cluster is a node of the other one. The lower scheduler sees that node among its own, and must not send a pod back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn clusters_that_are_nodes_of_each_other_pass_no_pod_in_circles() {
    let (one, two) = (by_estimate().await, by_trial().await);
    let (to_two, to_one) = tokio::join!(
        ClusterPair::open(one.upper(), two.upper(), "mesh-two", 2, json!({}), &[]),
        ClusterPair::open(two.upper(), one.upper(), "mesh-one", 2, json!({}), &[]),
    );
    // The selector of lower pods matches the node that leads back, too.
    for (placement, node, site) in [(two, &to_one.node, &to_two.node), (one, &to_two.node, &to_one.node)] {
        let label = json!({"metadata": {"labels": {SITE: site}}});
        placement.cluster_scope().patch(&format!("nodes/{node}"), &label).await;
    }
    let clients = [one, two].map(|placement| NamespaceClient::new(placement.upper(), "mesh"));
    for client in &clients {
        create_namespace(client, &json!({OFFLOAD: "true"})).await;
    }

    clients[0].create("pods", &pod_for(&[&to_two.node], "from-one", 3)).await;
    clients[1].create("pods", &pod_for(&[&to_one.node], "from-two", 3)).await;
    for (above, below, pair, pod) in [(0, 1, &to_two, "from-one"), (1, 0, &to_one, "from-two")]
        .map(|(a, b, pair, pod)| (&clients[a], &clients[b], pair, pod))
    {
        let upper = above.wait_running(pod).await;
        assert_eq!(upper["spec"]["nodeName"], json!(pair.node));
        let lower = below.wait_running(pod).await;
        assert!(text(&lower["spec"]["nodeName"]).starts_with(&format!("{}-lower-", pair.node)), "{lower}");
        assert!(lower["metadata"]["labels"][ORIGIN].is_string(), "{lower}");
    }
    // No machine of the second cluster takes it, and the sum of the first one would.
    let mut big = pod_without_placement(&[&to_two.node], "big", 12);
    big["spec"]["nodeName"] = json!(to_two.node);
    clients[0].create("pods", &big).await;
    let lower = clients[1].wait_for("pods/big", "finds no node", is_unschedulable).await;
    assert!(!lower["spec"]["tolerations"].to_string().contains(TAINT), "{lower}");
    assert_eq!(
        gated(std::slice::from_ref(&lower)),
        0,
        "pods from another cluster do not wait for us: {lower}"
    );
    let of_others =
        |pods: Vec<Value>| pods.iter().filter(|pod| pod["metadata"]["labels"][ORIGIN].is_string()).count();
    for client in &clients {
        // Each has the pod of the other one, and the second the big one.
        let expected = if client.cluster.url() == two.upper().url() { 2 } else { 1 };
        assert_eq!(of_others(client.list("pods").await), expected);
    }
}
