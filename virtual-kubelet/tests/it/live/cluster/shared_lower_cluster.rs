//! Several upper clusters, and several virtual nodes of one, on the same lower cluster.

use serde_json::{Value, json};
use vk_testing::ControlPlane;

use super::{
    super::{becomes_ready, run_as},
    cluster_namespace::{ClusterNamespace, condition},
    cluster_pair::{ClusterPair, NODE, ORIGIN, ORIGIN_UID, SITE, lower, mock_nodes, upper},
    object_dump::ObjectDump,
};

/// A pod that is bound by hand: one of the upper clusters has no scheduler.
fn bound(pair: &ClusterPair<'_>, name: &str) -> Value {
    let mut pod = pair.pod(name);
    pod["spec"]["nodeName"] = json!(pair.node);
    pod
}

/// A namespace of this name, that takes pods.
async fn namespace(cluster: &ControlPlane, name: &str) {
    let side = ClusterNamespace::new(cluster, name);
    side.create("namespaces", &json!({"metadata": {"name": name}})).await;
    side.create("serviceaccounts", &json!({"metadata": {"name": "default"}})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn tensile_kube_two_upper_clusters_on_one_lower_cluster_leave_each_others_pods_alone() {
    let (first, second, lower) = (upper().await, ControlPlane::shared().await, lower().await);
    let mut one = ClusterPair::open(first, lower, "sharing", 2, json!({}), &[]).await;
    // As alike as can be: the same name, the same lower nodes.
    let mut two =
        ClusterPair::open(second, lower, "sharing", 0, json!({"nodeSelector": {SITE: one.node}}), &[]).await;
    assert_eq!(one.node, two.node);
    let name = first.namespace("sharing").await.unwrap().name().to_owned();
    namespace(second, &name).await;
    let (above, beside, below) = (
        ClusterNamespace::new(first, &name),
        ClusterNamespace::new(second, &name),
        ClusterNamespace::new(lower, &name),
    );

    above.create("pods", &bound(&one, "first")).await;
    beside.create("pods", &bound(&two, "second")).await;
    above.runs("first").await;
    beside.runs("second").await;
    let origins = [below.get("pods/first").await, below.get("pods/second").await]
        .map(|pod| pod["metadata"]["labels"][ORIGIN].clone());
    assert_ne!(origins[0], origins[1]);

    // A pod of the same name waits for the other one, and says so.
    beside.create("pods", &bound(&two, "first")).await;
    beside.told("first", &["NameConflict"]).await;
    let waits = beside
        .see("pods/first", "says why it waits", |pod| pod["status"].to_string().contains("NameConflict"));
    assert_eq!(waits.await["status"]["phase"], "Pending");

    // Neither of them deletes what it does not know of, when it begins anew.
    let before = ObjectDump::of(lower, Some(&name)).await;
    let twins = before.pods();
    for pair in [&mut one, &mut two] {
        pair.kill();
        pair.start().await;
    }
    for (side, pair) in [(&above, &one), (&beside, &two)] {
        side.create(
            "pods",
            &bound(pair, &format!("later-{}", side.cluster.url().rsplit(':').next().unwrap())),
        )
        .await;
    }
    for side in [&above, &beside] {
        side.runs(&format!("later-{}", side.cluster.url().rsplit(':').next().unwrap())).await;
    }
    let after = ObjectDump::of(lower, Some(&name)).await;
    before.assert_same_for_others(&after);
    let now = after.pods();
    assert!(twins.iter().all(|twin| now.contains(twin)), "{twins:?} became {now:?}");

    // Deleting the namesake above takes nothing of the other one.
    beside.delete("pods/first", None).await;
    beside.goes("pods/first").await;
    let still = below.runs("first").await;
    assert_eq!(still["metadata"]["labels"][ORIGIN_UID], above.get("pods/first").await["metadata"]["uid"]);
    // And once the name is free, the other cluster may have it.
    above.delete("pods/first", None).await;
    above.goes("pods/first").await;
    beside.create("pods", &bound(&two, "first")).await;
    beside.runs("first").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn two_virtual_nodes_of_one_lower_cluster_keep_to_their_own_pods_and_nodes() {
    let (upper, lower) = (upper().await, lower().await);
    let mut one = ClusterPair::open(upper, lower, "left", 1, json!({}), &[]).await;
    let two = ClusterPair::open(upper, lower, "right", 1, json!({}), &[]).await;
    let namespace = upper.namespace("halves").await.unwrap().name().to_owned();
    let (above, below) = (ClusterNamespace::new(upper, &namespace), ClusterNamespace::new(lower, &namespace));
    for (pair, name) in [(&one, "left"), (&two, "right")] {
        above.create("pods", &pair.pod(name)).await;
    }
    for (pair, name) in [(&one, "left"), (&two, "right")] {
        let pod = above.runs(name).await;
        assert_eq!(pod["spec"]["nodeName"], json!(pair.node));
        let twin = below.runs(name).await;
        assert_eq!(twin["spec"]["nodeName"], json!(pair.lower_node(0)));
        assert_eq!(twin["metadata"]["labels"][NODE], json!(pair.node));
    }
    let other = below.get("pods/right").await;
    one.kill();
    one.start().await;
    above.delete("pods/left", None).await;
    above.goes("pods/left").await;
    assert!(below.find("pods/left").await.is_none());
    let now = below.get("pods/right").await;
    assert_eq!(now["metadata"]["uid"], other["metadata"]["uid"]);
    assert_eq!(condition(&now, "Ready")["status"], "True");
    // What the one's pods take of its node the other does not offer less for.
    for pair in [&one, &two] {
        let node = above.get(&format!("nodes/{}", pair.node)).await;
        assert_eq!(node["status"]["allocatable"]["cpu"], "8", "{}", pair.node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn one_configuration_makes_several_nodes_of_a_lower_cluster_each_with_lower_nodes_of_its_own() {
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
    let (above, below) = (ClusterNamespace::new(upper, &namespace), ClusterNamespace::new(lower, &namespace));
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
        above.runs(name).await;
        let twin = below.runs(name).await;
        assert_eq!(twin["spec"]["nodeName"], json!(format!("{name}-lower-0")));
        assert_eq!(twin["metadata"]["labels"][NODE], json!(name));
    }
    assert!(above.find("nodes/several").await.is_none(), "the process's own name is none of a node");
    let twins = below.list("pods").await.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    process.kill();
    let _process = start();
    above.delete(&format!("pods/{}", names[0]), None).await;
    above.goes(&format!("pods/{}", names[0])).await;
    let left = below.list("pods").await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(twins.contains(&left[0]["metadata"]["uid"]), "it was made anew");
}
