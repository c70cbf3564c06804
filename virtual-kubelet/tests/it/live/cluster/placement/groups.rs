//! Groups of pods, which go to one node together or not at all, with real schedulers in both clusters.

use serde_json::{Value, json};
use vk_testing::eventually;

use super::{PLACED, PlacementTest, gated, placement, running, spec};
use crate::live::cluster::{
    cluster_pair::{ClusterPair, ORIGIN_UID, lower},
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
};

const GROUP: &str = "multicluster.virtual-kubelet.io/group";
const SIZE: &str = "multicluster.virtual-kubelet.io/group-size";

/// A pod of a group that opted in.
fn member(name: &str, group: &str, size: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {"virtual-pod": "true", "app": group, GROUP: group},
            "annotations": {SIZE: size},
        },
        "spec": spec,
    })
}

fn of_group<'a>(pods: &'a [Value], group: &str) -> Vec<&'a Value> {
    pods.iter().filter(|pod| pod["metadata"]["labels"][GROUP] == group).collect()
}

/// All pods of the group run on the node, each once below.
async fn runs_on(
    team: &NamespaceClient<'_>,
    below: &NamespaceClient<'_>,
    group: &str,
    size: usize,
    node: &str,
) {
    eventually(&format!("group {group} runs on {node}"), TIMEOUT, || async {
        let (above, lower) = (team.list("pods").await, below.list("pods").await);
        let pods = of_group(&above, group);
        let placed: Vec<_> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        assert!(placed.iter().all(|name| *name == node), "{placed:?} instead of {node}");
        let uids: Vec<_> = pods.iter().map(|pod| &pod["metadata"]["uid"]).collect();
        let below = lower.iter().filter(|pod| uids.contains(&&pod["metadata"]["labels"][ORIGIN_UID])).count();
        let owned: Vec<Value> = pods.into_iter().cloned().collect();
        let counts = (running(&owned), placed.len(), below);
        let why: Vec<_> = owned.iter().map(|pod| condition(pod, PLACED)["message"].clone()).collect();
        if counts == (size, size, size) { Ok(()) } else { Err(format!("{counts:?} {why:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_group_goes_to_the_node_that_has_room_for_all_of_it_or_waits() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "estimate"]).await;
    let account = test.account().await;
    let process = placement(&account, &["--gates", "estimate", "--order", "vk-group-a,vk-group-b"]);
    let _first = ClusterPair::open(&test.upper, lower, "group-a", 1, json!({}), &[]).await;
    let second = ClusterPair::open(&test.upper, lower, "group-b", 2, json!({}), &[]).await;
    let team = test.namespace("group").await;
    let below = NamespaceClient::new(lower, &team.namespace);

    // A lower node has 8 CPUs: the leader and a worker would fit on the first virtual node.
    for (name, cpu) in [("leader", 1), ("worker-0", 6), ("worker-1", 6)] {
        team.create("pods", &member(name, "train", "3", &spec(cpu))).await;
    }
    runs_on(&team, &below, "train", 3, &second.node).await;

    // 8, 1 or 2, and 2 CPUs are free.
    for index in 0..3 {
        team.create("pods", &member(&format!("wide-{index}"), "wide", "3", &spec(5))).await;
    }
    let why = "the 3 pods of group wide go to one node together: 0 of 2 nodes: vk-group-a: room for 1 of 3 pods; insufficient cpu; vk-group-b: room for 0 of 3 pods; insufficient cpu";
    for index in 0..3 {
        team.wait_for(&format!("pods/wide-{index}"), "says why it waits", |pod| {
            text(&condition(pod, PLACED)["message"]).starts_with(why)
        })
        .await;
        team.wait_event(&format!("wide-{index}"), &["NoFeasibleNode", why]).await;
    }
    for (name, group, size) in
        [("zero", "zero", "0"), ("few", "few", "2"), ("differ-0", "differ", "2"), ("differ-1", "differ", "3")]
    {
        team.create("pods", &member(name, group, size, &spec(1))).await;
    }
    for (name, reason, message) in [
        ("zero", "InvalidGroup", "set it to the number of pods in the group, from 1 to 500"),
        ("differ-0", "InvalidGroup", "do not agree on the annotation"),
        ("differ-1", "InvalidGroup", "do not agree on the annotation"),
        ("few", "GroupIncomplete", "1 of 2 pods of group few exist without other scheduling gates"),
    ] {
        let pod = team
            .wait_for(&format!("pods/{name}"), "says what is wrong", |pod| {
                text(&condition(pod, PLACED)["message"]).contains(message)
            })
            .await;
        assert_eq!(condition(&pod, PLACED)["reason"], reason);
    }
    // None of them keeps a pod without a group away.
    team.create("pods", &super::pod("small", 6)).await;
    team.wait_running("small").await;
    let (above, lower_pods) = (team.list("pods").await, below.list("pods").await);
    assert_eq!((gated(&above), lower_pods.len()), (7, 4), "{:?}", process.stderr());

    let third = ClusterPair::open(&test.upper, lower, "group-c", 3, json!({}), &[]).await;
    runs_on(&team, &below, "wide", 3, &third.node).await;
    // A pod that is created again belongs where the others are, although another node has more room.
    team.delete("pods/leader", None).await;
    team.wait_deleted("pods/leader").await;
    team.create("pods", &member("leader", "train", "3", &spec(1))).await;
    runs_on(&team, &below, "train", 3, &second.node).await;
    let log = process.stderr();
    assert!(!log.contains("orbidden") && !log.contains("placement may"), "{log}");
}

/// Fit does not model required anti-affinity, so only the lower scheduler knows that the first node has too few lower nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_group_on_trial_is_bound_when_the_lower_scheduler_has_placed_all_of_it() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "trial"]).await;
    let account = test.account().await;
    let flags =
        ["--gates", "trial", "--trial-patience", "2s", "--order", "vk-group-trial-a,vk-group-trial-b"];
    let process = placement(&account, &flags);
    let first = ClusterPair::open(&test.upper, lower, "group-trial-a", 2, json!({}), &[]).await;
    let second = ClusterPair::open(&test.upper, lower, "group-trial-b", 3, json!({}), &[]).await;
    let team = test.namespace("group-trial").await;
    let below = NamespaceClient::new(lower, &team.namespace);
    let mut apart = spec(1);
    apart["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "train"}}},
    ]}});
    for index in 0..3 {
        team.create("pods", &member(&format!("train-{index}"), "train", "3", &apart)).await;
    }
    eventually("the group is on trial on the first node", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let on_trial =
            |pod: &&Value| pod["metadata"]["labels"]["multicluster.virtual-kubelet.io/trial"] == first.node;
        let count = pods.iter().filter(on_trial).count();
        if count == 3 { Ok(()) } else { Err(format!("{count} are: {}", process.stderr())) }
    })
    .await;
    runs_on(&team, &below, "train", 3, &second.node).await;
    for pod in team.list("pods").await {
        assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"], pod["spec"]["nodeName"]);
    }
    // No node has four lower nodes.
    let mut wide = apart;
    wide["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"] =
        json!({"matchLabels": {"app": "wide"}});
    for index in 0..4 {
        team.create("pods", &member(&format!("wide-{index}"), "wide", "4", &wide)).await;
    }
    team.wait_event("wide-0", &["NoFeasibleNode", "vk-group-trial-a: tried: ", "vk-group-trial-b: tried: "])
        .await;
    let above = team.list("pods").await;
    assert_eq!(gated(&above), 4, "none is bound");
    let third = ClusterPair::open(&test.upper, lower, "group-trial-c", 4, json!({}), &[]).await;
    runs_on(&team, &below, "wide", 4, &third.node).await;
    let log = process.stderr();
    assert!(!log.contains("orbidden") && !log.contains("placement may"), "{log}");
}
