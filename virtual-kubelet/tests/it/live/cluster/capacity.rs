//! The resources of the virtual node, which depend on its lower nodes and the pods of others.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use vk_testing::{ControlPlane, eventually};

use super::{
    cluster_pair::{ClusterPair, SITE, lower, upper},
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
};

/// The condition of a virtual node whose lower cluster has nodes for it.
const NODES_AVAILABLE: &str = "multicluster.virtual-kubelet.io/NodesAvailable";

/// A node without a kubelet, which stays Ready until its heartbeat is missed.
fn still_node(name: &str, site: &str, allocatable: &Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": {SITE: site, "kubernetes.io/hostname": name}},
        "status": {
            "capacity": allocatable, "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                "lastHeartbeatTime": "2100-01-01T00:00:00Z", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
        },
    })
}

/// Adds such a node, without the taint of new nodes. Returns its name.
pub(super) async fn join(below: &NamespaceClient<'_>, site: &str, allocatable: &Value) -> String {
    let name = format!("{site}-still");
    below.create("nodes", &still_node(&name, site, allocatable)).await;
    let tainted = |node: &Value| node["spec"]["taints"].to_string().contains("not-ready");
    eventually("the new node has no taint", TIMEOUT, || async {
        below.patch(&format!("nodes/{name}"), &json!({"spec": {"taints": null}})).await;
        let node = below.get(&format!("nodes/{name}")).await;
        if tainted(&node) { Err(node["spec"].to_string()) } else { Ok(()) }
    })
    .await;
    name
}

/// A pod of somebody else on a lower node.
pub(super) fn foreign(name: &str, node: &str, requests: &Value) -> Value {
    let spec = json!({"nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "example.com/other:1", "resources": {"requests": requests, "limits": requests}}]});
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Waits until the virtual node offers these amounts.
pub(super) async fn offers(cluster: &ControlPlane, node: &str, wanted: &Value) -> Value {
    let client = NamespaceClient::new(cluster, "default");
    let what = format!("nodes/{node}");
    eventually(&format!("{node} offers {wanted}"), TIMEOUT, || async {
        let found = client.get(&what).await;
        let offered = &found["status"]["allocatable"];
        let same = wanted.as_object().unwrap().iter().all(|(name, amount)| {
            let offered = offered.get(name).cloned().unwrap_or_default();
            offered == *amount
        });
        if same { Ok(found) } else { Err(offered.to_string()) }
    })
    .await
}

/// Waits until the virtual node says that so many CPUs are free on the emptiest lower node.
async fn largest_free(client: &NamespaceClient<'_>, node: &str, cpu: i32) {
    let wish = format!("says that {cpu} CPUs are free on a lower node");
    let says = |node: &Value| {
        let annotation = &node["metadata"]["annotations"]["multicluster.virtual-kubelet.io/largest-free"];
        let free: Value = serde_json::from_str(text(annotation)).unwrap_or_default();
        text(&free["cpu"]) == cpu.to_string()
    };
    client.wait_for(&format!("nodes/{node}"), &wish, says).await;
}

/// Records the cpu amounts that a node offers until told to stop.
async fn amounts(
    client: &NamespaceClient<'_>,
    node: &str,
    enough: tokio::sync::watch::Receiver<bool>,
) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    while !*enough.borrow() {
        let found = client.get(&format!("nodes/{node}")).await;
        seen.insert(text(&found["status"]["allocatable"]["cpu"]).to_owned());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_virtual_node_offers_what_other_pods_leave_free() {
    let (upper, lower) = (upper().await, lower().await);
    let mut pair = ClusterPair::open(upper, lower, "capacity", 2, json!({}), &[]).await;
    let (node, above) = (pair.node.clone(), NamespaceClient::new(upper, "default"));
    let below = NamespaceClient::new(lower, lower.namespace("capacity").await.unwrap().name());
    offers(upper, &node, &json!({"cpu": "16", "pods": "400"})).await;

    // Pods of others are subtracted. Our own are not: the upper scheduler accounts for those.
    let (first, second) = (pair.lower_node(0), pair.lower_node(1));
    below.create("pods", &foreign("other", &first, &json!({"cpu": "3"}))).await;
    offers(upper, &node, &json!({"cpu": "13", "pods": "399"})).await;
    {
        let namespace = pair.test_namespace("capacity").await;
        let mut pod = pair.pod("own");
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
        let (_, own) = namespace.run(&pod).await;
        let found = above.get(&format!("nodes/{node}")).await;
        assert_eq!(found["status"]["allocatable"]["cpu"], "13");
        assert_eq!(found["status"]["capacity"]["cpu"], "16");
        // What is free on single lower nodes is less by our own pods, too.
        let mut free = [5, 8];
        let mut take = |pod: &Value, cpu: i32| {
            let index = usize::from(text(&pod["spec"]["nodeName"]) == second);
            free[index] -= cpu;
            free[0].max(free[1])
        };
        let with_own = take(&own, 2);
        largest_free(&above, &node, with_own).await;
        for name in ["more-0", "more-1"] {
            let mut pod = pair.pod(name);
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "3"}});
            let (_, lower) = namespace.run(&pod).await;
            largest_free(&above, &node, take(&lower, 3)).await;
        }
        for name in ["more-0", "more-1"] {
            namespace.remove(name).await;
        }
        largest_free(&above, &node, with_own).await;
    }
    // Also during a restart, at any time: tensile-kube subtracted own pods then.
    let (enough, watched) = tokio::sync::watch::channel(false);
    let seen = amounts(&above, &node, watched);
    let again = async {
        pair.kill();
        pair.start().await;
        let namespace = pair.test_namespace("capacity").await;
        // The process works again when it has run a pod.
        namespace.run(&pair.pod("next")).await;
        enough.send(true).unwrap();
    };
    let (seen, ()) = tokio::join!(seen, again);
    assert_eq!(seen, BTreeSet::from(["13".to_owned()]), "what it offered meanwhile");

    // Cordoned nodes do not count, and neither do the pods on them.
    below.patch(&format!("nodes/{second}"), &json!({"spec": {"unschedulable": true}})).await;
    offers(upper, &node, &json!({"cpu": "5", "pods": "199"})).await;
    below.patch(&format!("nodes/{second}"), &json!({"spec": {"unschedulable": null}})).await;
    offers(upper, &node, &json!({"cpu": "13", "pods": "399"})).await;

    // A node that joins with an extended resource, one that is not Ready, one with a taint, and one that is deleted.
    let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "2"});
    let path = format!("nodes/{}", join(&below, &node, &allocatable).await);
    offers(upper, &node, &json!({"cpu": "17", "pods": "409", "example.com/gpu": "2"})).await;
    let taint = json!([{"key": "example.com/mine", "effect": "NoSchedule"}]);
    below.patch(&path, &json!({"spec": {"taints": taint}})).await;
    offers(upper, &node, &json!({"cpu": "13", "pods": "399"})).await;
    below.patch(&path, &json!({"spec": {"taints": null}})).await;
    offers(upper, &node, &json!({"cpu": "17", "example.com/gpu": "2"})).await;
    below.delete(&path, None).await;
    offers(upper, &node, &json!({"cpu": "13", "pods": "399"})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_91_an_overcommitted_node_offers_nothing_and_stays_ready() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "overdrawn", 1, json!({}), &[]).await;
    let below = NamespaceClient::new(lower, lower.namespace("overdrawn").await.unwrap().name());
    // On a node without a kubelet, which would reject it.
    let still = join(&below, &pair.node, &json!({"cpu": "4", "memory": "8Gi", "pods": "10"})).await;
    offers(upper, &pair.node, &json!({"cpu": "12"})).await;
    let greedy = json!({"cpu": "100", "example.com/nothing": "5"});
    below.create("pods", &foreign("greedy", &still, &greedy)).await;
    let found = offers(upper, &pair.node, &json!({"cpu": "0"})).await;
    let negative = |amounts: &Value| {
        let all = amounts.as_object().cloned().unwrap_or_default();
        all.values().any(|amount| amount.as_str().is_some_and(|text| text.starts_with('-')))
    };
    assert!(!negative(&found["status"]["allocatable"]) && !negative(&found["status"]["capacity"]), "{found}");
    assert_eq!(condition(&found, "Ready")["status"], "True");
    below.delete("pods/greedy", Some(0)).await;
    offers(upper, &pair.node, &json!({"cpu": "12"})).await;
    below.delete(&format!("nodes/{still}"), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_49_a_pod_deleted_with_force_frees_its_requests_in_both_clusters() {
    let (upper, lower) = (upper().await, lower().await);
    let pair = ClusterPair::open(upper, lower, "forced", 1, json!({}), &[]).await;
    let namespace = pair.test_namespace("forced").await;
    let mut pod = pair.pod("large");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "8"}});
    namespace.run(&pod).await;
    // Another pod of this size does not fit in either cluster until this one is gone.
    namespace.upper.delete("pods/large", Some(0)).await;
    namespace.lower.wait_deleted("pods/large").await;
    let mut next = pod.clone();
    next["metadata"]["name"] = json!("next");
    namespace.run(&next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_virtual_node_without_eligible_lower_nodes_says_how_many_were_left_out_and_why() {
    let (upper, lower) = (upper().await, lower().await);
    // The lower nodes of this test are virtual themselves.
    let pair = ClusterPair::open(upper, lower, "idle", 2, json!({"virtualNodes": false}), &[]).await;
    let above = NamespaceClient::new(upper, "default");
    let node = format!("nodes/{}", pair.node);
    let found = above
        .wait_for(&node, "says that it has no nodes", |node| {
            condition(node, NODES_AVAILABLE)["reason"] == "NoEligibleNodes"
        })
        .await;
    let said = condition(&found, NODES_AVAILABLE);
    assert_eq!(said["status"], "False");
    for word in ["2 virtual", "virtualNodes"] {
        assert!(text(&said["message"]).contains(word), "{word} in {said}");
    }
    let told = above.wait_event(&pair.node, &["NoEligibleNodes", "2 virtual"]).await;
    assert_eq!(told["type"], "Warning");
    let log = pair.log();
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains("2 virtual")), "{log}");

    // `doctor` says the same.
    let config = json!({"kubeconfig": lower.admin_kubeconfig(), "nodeSelector": {SITE: pair.node}});
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("provider.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let flags = ["doctor", "--provider", "cluster", "--provider-config", path.to_str().unwrap()];
    let outcome = crate::vk(&flags).start().end(Duration::from_mins(1)).await;
    let said = outcome.stdout.lines().find(|line| line.contains("2 virtual"));
    assert!(said.is_some(), "{outcome:#?}");
}
