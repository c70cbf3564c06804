//! Several upper clusters, and several virtual nodes of one, on the same lower cluster.

use serde_json::{Value, json};
use vk_testing::ControlPlane;

use super::{
    super::{becomes_ready, run_as},
    cluster_pair::{ClusterPair, NODE, ORIGIN, ORIGIN_UID, SITE, lower, mock_nodes, upper},
    namespace_client::{NamespaceClient, condition},
    snapshot::ClusterSnapshot,
};

/// A pod that is bound by hand, because one of the upper clusters has no scheduler.
fn bound(pair: &ClusterPair<'_>, name: &str) -> Value {
    let mut pod = pair.pod(name);
    pod["spec"]["nodeName"] = json!(pair.node);
    pod
}

/// Creates a namespace that accepts pods.
async fn namespace(cluster: &ControlPlane, name: &str) {
    let client = NamespaceClient::new(cluster, name);
    client.create("namespaces", &json!({"metadata": {"name": name}})).await;
    client.create("serviceaccounts", &json!({"metadata": {"name": "default"}})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_two_upper_clusters_share_a_lower_cluster() {
    let (first, second, lower) = (upper().await, ControlPlane::shared().await, lower().await);
    let mut one = ClusterPair::open(first, lower, "sharing", 2, json!({}), &[]).await;
    // As similar as possible: the same name and the same lower nodes.
    let mut two =
        ClusterPair::open(second, lower, "sharing", 0, json!({"nodeSelector": {SITE: one.node}}), &[]).await;
    assert_eq!(one.node, two.node);
    let name = first.namespace("sharing").await.unwrap().name().to_owned();
    namespace(second, &name).await;
    let (above, beside, below) = (
        NamespaceClient::new(first, &name),
        NamespaceClient::new(second, &name),
        NamespaceClient::new(lower, &name),
    );

    above.create("pods", &bound(&one, "first")).await;
    beside.create("pods", &bound(&two, "second")).await;
    above.wait_running("first").await;
    beside.wait_running("second").await;
    let origins = [below.get("pods/first").await, below.get("pods/second").await]
        .map(|pod| pod["metadata"]["labels"][ORIGIN].clone());
    assert_ne!(origins[0], origins[1]);

    // A pod of the same name waits for the other one and shows why.
    beside.create("pods", &bound(&two, "first")).await;
    beside.wait_event("first", &["NameConflict"]).await;
    let waits = beside.wait_for("pods/first", "says why it waits", |pod| {
        pod["status"].to_string().contains("NameConflict")
    });
    assert_eq!(waits.await["status"]["phase"], "Pending");

    // Neither deletes unknown pods after a restart.
    let before = ClusterSnapshot::of(lower, Some(&name)).await;
    let lower_pods = before.pods();
    for pair in [&mut one, &mut two] {
        pair.kill();
        pair.start().await;
    }
    for (client, pair) in [(&above, &one), (&beside, &two)] {
        client
            .create(
                "pods",
                &bound(pair, &format!("later-{}", client.cluster.url().rsplit(':').next().unwrap())),
            )
            .await;
    }
    for client in [&above, &beside] {
        client.wait_running(&format!("later-{}", client.cluster.url().rsplit(':').next().unwrap())).await;
    }
    let after = ClusterSnapshot::of(lower, Some(&name)).await;
    before.assert_same_for_others(&after);
    let now = after.pods();
    assert!(lower_pods.iter().all(|lower_pod| now.contains(lower_pod)), "{lower_pods:?} became {now:?}");

    // Deleting the upper pod of the same name does not affect the other one.
    beside.delete("pods/first", None).await;
    beside.wait_deleted("pods/first").await;
    let still = below.wait_running("first").await;
    assert_eq!(still["metadata"]["labels"][ORIGIN_UID], above.get("pods/first").await["metadata"]["uid"]);
    // Once the name is free, the other cluster can use it.
    above.delete("pods/first", None).await;
    above.wait_deleted("pods/first").await;
    beside.create("pods", &bound(&two, "first")).await;
    beside.wait_running("first").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn two_virtual_nodes_of_one_lower_cluster_are_independent() {
    let (upper, lower) = (upper().await, lower().await);
    let mut one = ClusterPair::open(upper, lower, "left", 1, json!({}), &[]).await;
    let two = ClusterPair::open(upper, lower, "right", 1, json!({}), &[]).await;
    let namespace = upper.namespace("halves").await.unwrap().name().to_owned();
    let (above, below) = (NamespaceClient::new(upper, &namespace), NamespaceClient::new(lower, &namespace));
    for (pair, name) in [(&one, "left"), (&two, "right")] {
        above.create("pods", &pair.pod(name)).await;
    }
    for (pair, name) in [(&one, "left"), (&two, "right")] {
        let pod = above.wait_running(name).await;
        assert_eq!(pod["spec"]["nodeName"], json!(pair.node));
        let lower_pod = below.wait_running(name).await;
        assert_eq!(lower_pod["spec"]["nodeName"], json!(pair.lower_node(0)));
        assert_eq!(lower_pod["metadata"]["labels"][NODE], json!(pair.node));
    }
    let other = below.get("pods/right").await;
    one.kill();
    one.start().await;
    above.delete("pods/left", None).await;
    above.wait_deleted("pods/left").await;
    assert!(below.find("pods/left").await.is_none());
    let now = below.get("pods/right").await;
    assert_eq!(now["metadata"]["uid"], other["metadata"]["uid"]);
    assert_eq!(condition(&now, "Ready")["status"], "True");
    // Pods of one virtual node do not reduce what the other offers.
    for pair in [&one, &two] {
        let node = above.get(&format!("nodes/{}", pair.node)).await;
        assert_eq!(node["status"]["allocatable"]["cpu"], "8", "{}", pair.node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn one_configuration_can_define_several_virtual_nodes() {
    let (upper, lower) = (upper().await, lower().await);
    let names = ["vk-several-a", "vk-several-b"];
    let _below = names.map(|name| mock_nodes(lower, name, 1));
    for name in names {
        becomes_ready(lower, &format!("{name}-lower-0")).await;
    }
    let nodes = names.map(|name| json!({"name": name, "nodeSelector": {SITE: name}}));
    let config =
        json!({"kubeconfig": lower.admin_kubeconfig(), "virtualNodes": true, "percent": 50, "nodes": nodes});
    let flags = ["--provider", "cluster", "--nodename", "several", "--provider-config"];
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("provider.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let start =
        || run_as(upper.admin_kubeconfig(), &[&flags[..], &[path.to_str().unwrap()]].concat()).start();
    let mut process = start();
    let namespace = upper.namespace("several").await.unwrap().name().to_owned();
    let (above, below) = (NamespaceClient::new(upper, &namespace), NamespaceClient::new(lower, &namespace));
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeSelector": {"kubernetes.io/hostname": name},
            "tolerations": [{"operator": "Exists"}], "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "example.com/app:1"}]}})
    };
    for name in names {
        becomes_ready(upper, name).await;
        assert_eq!(
            above.get(&format!("nodes/{name}")).await["status"]["allocatable"]["cpu"],
            "4",
            "half of it"
        );
        above.create("pods", &pod(name)).await;
    }
    for name in names {
        above.wait_running(name).await;
        let lower_pod = below.wait_running(name).await;
        assert_eq!(lower_pod["spec"]["nodeName"], json!(format!("{name}-lower-0")));
        assert_eq!(lower_pod["metadata"]["labels"][NODE], json!(name));
    }
    assert!(above.find("nodes/several").await.is_none(), "the process's own name is none of a node");
    let lower_pods =
        below.list("pods").await.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    process.kill();
    let _process = start();
    above.delete(&format!("pods/{}", names[0]), None).await;
    above.wait_deleted(&format!("pods/{}", names[0])).await;
    // Its containers have ended, but the object may still be there.
    below.wait_deleted(&format!("pods/{}", names[0])).await;
    let left = below.list("pods").await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(lower_pods.contains(&left[0]["metadata"]["uid"]), "it was made anew");
}
