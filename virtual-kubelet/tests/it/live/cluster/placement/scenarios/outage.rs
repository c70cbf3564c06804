//! Lower clusters that are gone or hang.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use vk_testing::eventually;

use super::{SharedPlacement, by_estimate, by_trial, gated, pod_for, pod_without_placement};
use crate::live::{
    becomes_ready,
    cluster::{
        cluster_pair::{ClusterPair, start_lower, unready},
        namespace_client::{NamespaceClient, TIMEOUT},
        placement::{lower_pods, trial::TRIAL},
    },
    container_node::number,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_20_and_106_a_cluster_that_hangs_and_one_that_is_gone_delay_no_estimate_for_others() {
    others_get_their_pods(by_estimate().await, "106-estimate").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_20_and_106_a_cluster_that_hangs_and_one_that_is_gone_delay_no_trial_in_others() {
    others_get_their_pods(by_trial().await, "106-trial").await;
}

/// For most of a minute, the upper cluster still has nodes for Ready that do not answer.
async fn others_get_their_pods(placement: &'static SharedPlacement, name: &str) {
    let names = ["hangs", "gone", "well"].map(|suffix| format!("{name}-{suffix}"));
    let (hangs, mut gone, well) = tokio::join!(
        placement.node(&names[0], 1, json!({})),
        placement.node(&names[1], 1, json!({})),
        placement.node(&names[2], 1, json!({})),
    );
    let team = placement.team(name).await;
    hangs.suspend();
    gone.kill();
    let nodes = [&*hangs.node, &*gone.node, &*well.node];
    for index in 0..4 {
        team.upper.create("pods", &pod_for(&nodes, &format!("pod-{index}"), 2)).await;
    }
    for index in 0..4 {
        team.wait_running_on(&format!("pod-{index}"), &well).await;
    }
}

/// The API server of a lower cluster is away while pods are on trial there. Their lower scheduler decides late: it is the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn admiralty_106_pods_on_trial_survive_an_outage_of_their_lower_api_server_and_others_do_not_notice() {
    let outage = Duration::from_secs(number("VK_PLACEMENT_OUTAGE", 5) as u64);
    let placement = by_trial().await;
    let away = start_lower().await;
    let config = json!({"allow": {"schedulers": ["late"]}});
    let (ill, well) = tokio::join!(
        ClusterPair::open(placement.upper(), &away, "away", 2, config, &[]),
        placement.node("106-well", 1, json!({})),
    );
    let team = placement.team("106-away").await;
    let below = NamespaceClient::new(&away, &team.upper.namespace);
    for index in 0..3 {
        let mut pod = pod_for(&[&ill.node], &format!("ill-{index}"), 2);
        pod["metadata"]["annotations"] =
            json!({"multicluster.virtual-kubelet.io/lower": json!({"schedulerName": "late"}).to_string()});
        team.upper.create("pods", &pod).await;
    }
    for index in 0..3 {
        let name = format!("pods/ill-{index}");
        team.upper.wait_for(&name, "is on trial", |pod| pod["metadata"]["labels"][TRIAL] == ill.node).await;
        below.wait_exists(&name).await;
    }
    let (enough, watched) = watch::channel(false);
    let places = [below.clone(), team.lower.clone()];
    let observed = lower_pods::observe(&places, watched);
    let survived = async {
        away.pause_api_server().await.unwrap();
        let begun = Instant::now();
        // What is tried there before the outage is noticed waits for its end.
        team.upper.create("pods", &pod_for(&[&well.node], "well-0", 2)).await;
        unready(placement.upper(), &ill.node, "does not answer").await;
        for index in 1..4 {
            let pod = pod_for(&[&ill.node, &well.node], &format!("well-{index}"), 2);
            team.upper.create("pods", &pod).await;
        }
        for index in 0..4 {
            team.wait_running_on(&format!("well-{index}"), &well).await;
        }
        tokio::time::sleep_until(begun + outage).await;
        let pods = team.upper.list("pods").await;
        assert_eq!(gated(&pods), 3, "the others wait for their cluster");
        let locked = pods.iter().filter(|pod| pod["metadata"]["labels"][TRIAL] == ill.node).count();
        assert_eq!(locked, 3, "only the node can end a trial: {pods:?}");
        away.resume_api_server().await.unwrap();
        schedule(&below, &team.upper, &[ill.lower_node(0), ill.lower_node(1)]).await;
        enough.send(true).unwrap();
    };
    let (report, ()) = tokio::join!(observed, survived);
    assert_eq!(report.doubled, Vec::<String>::new(), "two lower pods of one pod at the same time");
    assert_eq!((below.list("pods").await.len(), team.lower.list("pods").await.len()), (3, 4));
}

/// Does what the lower scheduler does until all pods run: it binds the lower pods that wait, also those of later trials.
async fn schedule(below: &NamespaceClient<'_>, above: &NamespaceClient<'_>, lower_nodes: &[String]) {
    eventually("all pods run", 2 * TIMEOUT, || async {
        let lower = below.try_list("pods").await.map_err(|error| error.to_string())?;
        for (index, pod) in lower.iter().enumerate() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            if pod["spec"]["nodeName"].is_null() && pod["metadata"]["deletionTimestamp"].is_null() {
                let target = json!({"apiVersion": "v1", "kind": "Node", "name": lower_nodes[index % lower_nodes.len()]});
                let binding =
                    json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target});
                // It may be deleted in this moment.
                drop(below.try_create(&format!("pods/{name}/binding"), &binding).await);
            }
        }
        let pods = above.list("pods").await;
        let count = super::running(&pods);
        if count == pods.len() { Ok(()) } else { Err(format!("{count} of {}: {pods:?}", pods.len())) }
    })
    .await;
}

/// The upper cluster evicts pods of nodes that are lost for five minutes, unless the pods tolerate that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn liqo_1194_with_tolerate_lost_pods_stay_on_a_node_that_is_lost_until_it_is_back() {
    let placement = by_trial().await;
    let mut pair = placement.node("1194", 1, json!({})).await;
    let team = placement.team("1194").await;
    team.upper.create("pods", &pod_for(&[&pair.node], "stays", 1)).await;
    // A second instead of the usual five minutes.
    let mut leaves = pod_without_placement(&[&pair.node], "leaves", 1);
    for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let toleration =
            json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
        leaves["spec"]["tolerations"].as_array_mut().unwrap().push(toleration);
    }
    team.upper.create("pods", &leaves).await;
    let lower = team.wait_running_on("stays", &pair).await;
    team.wait_running_on("leaves", &pair).await;
    pair.kill();
    // What the upper controllers write when they miss its heartbeat for some time.
    let (all, node) = (placement.cluster_scope(), format!("nodes/{}", pair.node));
    let mut conditions = all.get(&node).await["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().unwrap().iter_mut().filter(|it| it["type"] == "Ready") {
        (condition["status"], condition["reason"]) = (json!("Unknown"), json!("NodeStatusUnknown"));
    }
    all.patch(&format!("{node}/status"), &json!({"status": {"conditions": conditions}})).await;
    let is_leaving = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
    team.upper.wait_for("pods/leaves", "is evicted", is_leaving).await;
    assert!(!is_leaving(&team.upper.get("pods/stays").await));
    pair.launch();
    becomes_ready(placement.upper(), &pair.node).await;
    team.upper.wait_deleted("pods/leaves").await;
    let still = team.wait_running_on("stays", &pair).await;
    assert_eq!(still["metadata"]["uid"], lower["metadata"]["uid"], "it ran all the time");
}
