//! Outages of the lower API server.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Barrier;
use vk_testing::{ControlPlane, eventually};

use super::{
    super::{becomes, becomes_ready, leases, run_as},
    cluster_pair::{ClusterPair, SITE, lower, mock_nodes, start_lower, unready, upper},
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
    snapshot::ClusterSnapshot,
};

const REACHABLE: &str = "multicluster.virtual-kubelet.io/LowerClusterReachable";

/// Synchronises the outage between all observers.
struct OutageBarrier(Barrier);

impl OutageBarrier {
    /// Everything is prepared: the API server may stop. Returns when it has.
    async fn away(&self) {
        self.0.wait().await;
        self.0.wait().await;
    }

    /// Enough was observed: the API server may start. Returns when it has.
    async fn back(&self) {
        self.away().await;
    }
}

/// One outage for all checks, because it takes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn an_unreachable_lower_cluster_keeps_its_pods_and_can_be_abandoned() {
    let (upper, well, lower) = (upper().await, lower().await, &start_lower().await);
    let turns = OutageBarrier(Barrier::new(4));
    let conducted = async {
        turns.0.wait().await;
        lower.pause_api_server().await.unwrap();
        turns.0.wait().await;
        turns.0.wait().await;
        lower.resume_api_server().await.unwrap();
        turns.0.wait().await;
    };
    tokio::join!(
        conducted,
        pods_stay_as_they_are_and_deletions_wait(upper, lower, &turns),
        admiralty_106_the_other_lower_cluster_of_the_process_does_not_notice(upper, well, lower, &turns),
        given_up_it_frees_its_pods_and_the_node_without_being_asked(upper, lower, &turns),
    );
}

async fn pods_stay_as_they_are_and_deletions_wait(
    upper: &ControlPlane,
    lower: &ControlPlane,
    turns: &OutageBarrier,
) {
    let mut pair = ClusterPair::open(upper, lower, "outage", 2, json!({}), &["--lease-duration", "8s"]).await;
    let namespace = upper.namespace("outage").await.unwrap().name().to_owned();
    let (above, below) = (NamespaceClient::new(upper, &namespace), NamespaceClient::new(lower, &namespace));
    for pod in ["stays", "goes", "forced"] {
        above.create("pods", &pair.pod(pod)).await;
    }
    for pod in ["stays", "goes", "forced"] {
        above.wait_running(pod).await;
    }
    let lower_pod = below.get("pods/stays").await;
    let bystander = json!({"metadata": {"name": "bystander"}, "data": {"a": "b"}});
    below.create("configmaps", &bystander).await;
    let before = ClusterSnapshot::of(lower, Some(&namespace)).await;

    turns.away().await;
    unready(upper, &pair.node, "does not answer").await;
    let silent = |node: &Value| condition(node, REACHABLE)["status"] == "False";
    above.wait_for(&format!("nodes/{}", pair.node), "says that the lower cluster is silent", silent).await;
    // The lease is renewed: the process runs, only the backend does not.
    let renewed = || async {
        let lease = leases(upper).get(&pair.node).await.unwrap();
        lease.spec.unwrap().renew_time.unwrap().0
    };
    let then = renewed().await;
    eventually("the lease is renewed", TIMEOUT, || async {
        if renewed().await > then { Ok(()) } else { Err("it is not") }
    })
    .await;
    above.delete("pods/goes", None).await;
    above.delete("pods/forced", Some(0)).await;
    above.wait_deleted("pods/forced").await;
    let mut late = pair.pod("late");
    late["spec"]["nodeName"] = json!(pair.node);
    late["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    above.create("pods", &late).await;
    // A process that starts during the outage waits, and reports nothing wrong.
    pair.kill();
    pair.launch();
    let shown = above.get("pods/stays").await;
    assert_eq!(shown["status"]["phase"], "Running");
    assert!(above.find("pods/goes").await.is_some(), "it left, and nobody knows whether it still runs");

    turns.back().await;
    becomes(upper, &pair.node, "True", "KubeletReady", TIMEOUT).await;
    above.wait_deleted("pods/goes").await;
    assert!(below.find("pods/goes").await.is_none(), "it was removed before its lower pod");
    above.wait_running("late").await;
    // No upper pod belongs to it any more, and the process is a new one: it is an orphan, which is deleted after it was seen twice. That
    // takes more than a minute.
    if cfg!(feature = "e2e") {
        eventually("what is left over goes", Duration::from_mins(5), || async {
            below.find("pods/forced").await.map_or(Ok(()), |found| Err(found.to_string()))
        })
        .await;
    }
    let now = below.wait_running("stays").await;
    assert_eq!(now["metadata"]["uid"], lower_pod["metadata"]["uid"]);
    let shown = above.wait_running("stays").await;
    assert_eq!(shown["status"]["containerStatuses"][0]["restartCount"], 0);
    before.assert_same_for_others(&ClusterSnapshot::of(lower, Some(&namespace)).await);
}

async fn admiralty_106_the_other_lower_cluster_of_the_process_does_not_notice(
    upper: &ControlPlane,
    well: &ControlPlane,
    ill: &ControlPlane,
    turns: &OutageBarrier,
) {
    let namespace = upper.namespace("both").await.unwrap().name().to_owned();
    let names = ["vk-both-well", "vk-both-ill"];
    let _below = [mock_nodes(well, names[0], 1), mock_nodes(ill, names[1], 1)];
    let entry = |name: &str, cluster: &ControlPlane| {
        let config = json!({"kubeconfig": cluster.admin_kubeconfig(), "virtualNodes": true, "nodeSelector": {SITE: name}});
        json!({"name": name, "port": super::super::ports(1), "providerConfig": config})
    };
    let file =
        json!({"provider": "cluster", "nodes": [entry(names[0], well), entry(names[1], ill)]}).to_string();
    let flags = ["--no-port", "--provider", "cluster", "--ping-interval", "1s", "--ping-timeout", "2s"];
    let _process = run_as(upper.admin_kubeconfig(), &flags).file(&file).start();
    for name in names {
        becomes_ready(upper, name).await;
    }
    let above = NamespaceClient::new(upper, &namespace);
    let pod = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": "a"}]}})
    };
    turns.away().await;
    unready(upper, names[1], "does not answer").await;
    for number in 0..20 {
        above.create("pods", &pod(&format!("ill-{number}"), names[1])).await;
    }
    let begun = tokio::time::Instant::now();
    above.create("pods", &pod("well", names[0])).await;
    above.wait_running("well").await;
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    assert_eq!(text(&condition(&above.get(&format!("nodes/{}", names[0])).await, "Ready")["status"]), "True");
    turns.back().await;
    becomes(upper, names[1], "True", "KubeletReady", TIMEOUT).await;
    for number in 0..20 {
        above.wait_running(&format!("ill-{number}")).await;
    }
}

async fn given_up_it_frees_its_pods_and_the_node_without_being_asked(
    upper: &ControlPlane,
    lower: &ControlPlane,
    turns: &OutageBarrier,
) {
    let pair = ClusterPair::open(upper, lower, "given-up", 1, json!({}), &[]).await;
    let namespace = upper.namespace("given-up").await.unwrap().name().to_owned();
    let (above, below) = (NamespaceClient::new(upper, &namespace), NamespaceClient::new(lower, &namespace));
    for pod in ["runs", "ends"] {
        above.create("pods", &pair.pod(pod)).await;
    }
    for pod in ["runs", "ends"] {
        above.wait_running(pod).await;
    }
    let lower_pod = below.get("pods/runs").await;
    turns.away().await;
    unready(upper, &pair.node, "does not answer").await;
    above.delete("pods/ends", None).await;
    let node = format!("nodes/{}", pair.node);
    let abandon = json!({"metadata": {"annotations": {"multicluster.virtual-kubelet.io/abandon": "true"}}});
    above.patch(&node, &abandon).await;
    above.wait_deleted("pods/ends").await;
    above.wait_deleted("pods/runs").await;
    above.wait_deleted(&node).await;
    let told = NamespaceClient::new(upper, "default");
    let event = told.wait_event(&pair.node, &["runs"]).await;
    assert_eq!(event["involvedObject"]["kind"], "Node", "{event}");
    turns.back().await;
    let left = below.wait_running("runs").await;
    assert_eq!(left["metadata"]["uid"], lower_pod["metadata"]["uid"], "it is left as it was");
}
