//! The command is killed at random times during rollouts over two lower clusters: nothing is created twice, lost or left over, and objects
//! of others are not touched.

#![allow(clippy::print_stdout, reason = "what was measured on the way")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams, api::WatchParams};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use vk_testing::{ControlPlane, control_plane::Options, eventually};

use super::{
    super::{Process, becomes_ready, container_node::number, ports, run_as},
    cluster_pair::{ORIGIN_UID, SITE, TAINT, lower, mock_nodes, start_lower_with, upper},
    namespace_client::{NamespaceClient, text},
    snapshot::ClusterSnapshot,
};

/// Enough for an orphan, which is removed only after it was seen twice in two minutes.
const TIMEOUT: Duration = Duration::from_mins(5);

/// A lower cluster, its nodes, and the lower pods that were seen in it.
struct ObservedCluster<'a> {
    cluster: &'a ControlPlane,
    node: String,
    _nodes: Process,
    /// The foreign objects before the test, and the namespace that is compared.
    before: ClusterSnapshot,
    scope: Option<String>,
}

/// All lower pods ever seen, by the UID of their upper pod.
type Seen = BTreeMap<String, BTreeSet<String>>;

/// Records every lower pod until told to stop.
async fn follow(pods: Api<Pod>, mut enough: tokio::sync::watch::Receiver<bool>) -> Seen {
    let mut seen = Seen::new();
    let mut note = |pod: &Pod| {
        let lower_pod = pod.metadata.labels.as_ref().and_then(|labels| labels.get(ORIGIN_UID));
        if let (Some(lower_pod), Some(uid)) = (lower_pod, &pod.metadata.uid) {
            seen.entry(lower_pod.clone()).or_default().insert(uid.clone());
        }
    };
    let list = pods.list(&ListParams::default()).await.unwrap();
    list.items.iter().for_each(&mut note);
    let mut version = list.metadata.resource_version.unwrap();
    while !*enough.borrow_and_update() {
        let Ok(stream) = pods.watch(&WatchParams::default().timeout(290), &version).await else { continue };
        let mut stream = std::pin::pin!(stream);
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                _ = enough.changed() => break,
            };
            match event {
                Some(Ok(
                    kube::core::WatchEvent::Added(pod)
                    | kube::core::WatchEvent::Modified(pod)
                    | kube::core::WatchEvent::Deleted(pod),
                )) => {
                    note(&pod);
                    version = pod.metadata.resource_version.unwrap_or(version);
                }
                Some(Ok(kube::core::WatchEvent::Bookmark(mark))) => version = mark.metadata.resource_version,
                Some(_) | None => break,
            }
        }
    }
    seen
}

/// Creates pods, ConfigMaps and Secrets of somebody else in the namespace of the rollout.
async fn bystanders(cluster: &ControlPlane, namespace: &str, node: &str) {
    let client = NamespaceClient::new(cluster, namespace);
    client.create("namespaces", &json!({"metadata": {"name": namespace}})).await;
    client.wait_exists("serviceaccounts/default").await;
    client.create("configmaps", &json!({"metadata": {"name": "theirs"}, "data": {"a": "b"}})).await;
    client.create("secrets", &json!({"metadata": {"name": "theirs"}, "stringData": {"a": "b"}})).await;
    for number in 0..5 {
        // With the label of tensile-kube, which deletes unknown pods that have it.
        let pod = json!({"metadata": {"name": format!("theirs-{number}"), "labels": {"app": "web", "virtual-pod": "true"}},
            "spec": {"nodeSelector": {SITE: node}, "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "example.com/other:1"}]}});
        client.create("pods", &pod).await;
    }
    for number in 0..5 {
        client.wait_running(&format!("theirs-{number}")).await;
    }
}

fn deployment(nodes: &[String], replicas: usize) -> Value {
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]},
    ]}}});
    json!({"metadata": {"name": "web"}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "strategy": {"rollingUpdate": {"maxUnavailable": "10%", "maxSurge": "10%"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "affinity": affinity,
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}}],
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "main", "image": "example.com/app:1",
                "envFrom": [{"configMapRef": {"name": "settings"}}]}],
        }},
    }})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn killing_the_command_during_rollouts_loses_and_duplicates_nothing() {
    let (kills, count) = (number("VK_CLUSTER_KILLS", 4), number("VK_CLUSTER_PODS", 12));
    let seed = number("VK_SEED", 1);
    if kills <= 50 {
        // The second half of the nodes is in the same lower cluster, because control planes are expensive.
        let below = lower().await;
        storm(upper().await, [below, below], false, kills, count, seed).await;
        return;
    }
    let upper = ControlPlane::start(Options::with_controllers()).await.unwrap();
    let lowers = [
        start_lower_with(Options::with_controllers()).await,
        start_lower_with(Options::with_controllers()).await,
    ];
    storm(&upper, [&lowers[0], &lowers[1]], true, kills, count, seed).await;
}

/// `apart` says that only this test uses the clusters.
async fn storm(
    upper: &ControlPlane,
    lowers: [&ControlPlane; 2],
    apart: bool,
    kills: usize,
    count: usize,
    seed: usize,
) {
    let namespace = upper.namespace("storm").await.unwrap().name().to_owned();
    let above = NamespaceClient::new(upper, &namespace);
    above.create("configmaps", &json!({"metadata": {"name": "settings"}, "data": {"colour": "green"}})).await;
    let mut belows = Vec::new();
    let mut entries = Vec::new();
    for (index, cluster) in lowers.into_iter().enumerate() {
        let node = format!("vk-storm-{index}");
        let nodes = mock_nodes(cluster, &node, 2);
        if apart || index == 0 {
            bystanders(cluster, &namespace, &node).await;
        }
        let config = json!({"kubeconfig": cluster.admin_kubeconfig(), "virtualNodes": true, "nodeSelector": {SITE: node}});
        entries.push(json!({"name": node, "port": ports(1), "providerConfig": config}));
        let scope = (!apart).then(|| namespace.clone());
        let before = ClusterSnapshot::of(cluster, scope.as_deref()).await;
        belows.push(ObservedCluster { cluster, node, _nodes: nodes, before, scope });
    }
    let file = json!({"provider": "cluster", "nodes": entries}).to_string();
    let start = || -> Process {
        let flags = ["--no-port", "--provider", "cluster", "--log-level", "warn"];
        run_as(upper.admin_kubeconfig(), &flags).file(&file).start()
    };
    let (enough, watched) = tokio::sync::watch::channel(false);
    let mut followers = JoinSet::new();
    for below in &belows[..if apart { 2 } else { 1 }] {
        let pods = Api::namespaced(below.cluster.admin().unwrap(), &namespace);
        followers.spawn(follow(pods, watched.clone()));
    }
    let mut uppers = JoinSet::new();
    uppers.spawn(lost(Api::namespaced(upper.admin().unwrap(), &namespace), watched));

    let begun = Instant::now();
    let mut process = start();
    for below in &belows {
        becomes_ready(upper, &below.node).await;
    }
    let nodes: Vec<String> = belows.iter().map(|below| below.node.clone()).collect();
    above.create("deployments", &deployment(&nodes, count)).await;
    let mut random = StdRng::seed_from_u64(seed as u64);
    for kill in 0..kills {
        // In the middle of whatever is going on.
        tokio::time::sleep(Duration::from_millis(random.random_range(100..1500))).await;
        process.kill();
        process = start();
        // Every tenth of the time, another rollout starts.
        if kill % (kills / 10).max(2) == 1 {
            let image = format!("main=example.com/app:{}", kill + 2);
            above.kubectl(&["set", "image", "deployment/web", &image]).await;
        }
    }
    let stormy = begun.elapsed();
    above.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]).await;
    let calm = Instant::now();
    eventually("both sides have the same pods", TIMEOUT, || async {
        let upper: BTreeSet<(String, String)> = running(&above.list("pods").await, "uid");
        let mut lower = BTreeSet::new();
        for below in &belows {
            let client = NamespaceClient::new(below.cluster, &namespace);
            let pods: Vec<Value> = client.list("pods").await.into_iter().filter(is_ours).collect();
            lower.extend(running(&pods, ORIGIN_UID));
        }
        if upper == lower && upper.len() == count { Ok(()) } else { Err(format!("{upper:?}\n{lower:?}")) }
    })
    .await;
    let agreed = calm.elapsed();

    enough.send(true).unwrap();
    let mut made = 0;
    while let Some(seen) = followers.join_next().await {
        let seen = seen.unwrap();
        let twice: Vec<_> = seen.iter().filter(|(_, lower_pods)| lower_pods.len() > 1).collect();
        assert!(twice.is_empty(), "made more than once: {twice:?}");
        made += seen.len();
    }
    let lost = uppers.join_next().await.unwrap().unwrap();
    assert!(lost.is_empty(), "lost: {lost:?}");
    println!(
        "seed {seed}: {kills} kills in {stormy:.1?}, {made} pods came below, {count} run; agreed after {agreed:.1?}"
    );

    above.delete("deployments/web", None).await;
    for below in &belows {
        let client = NamespaceClient::new(below.cluster, &namespace);
        eventually("nothing of ours is left but the anchor", TIMEOUT, || async {
            let pods = client.list("pods").await.into_iter().filter(is_ours).count();
            // Copies stay for a minute, which short runs do not wait for.
            let copies = if apart { client.find("configmaps/settings").await } else { None };
            if pods == 0 && copies.is_none() { Ok(()) } else { Err(format!("{pods} pods, {copies:?}")) }
        })
        .await;
        below
            .before
            .assert_same_for_others(&ClusterSnapshot::of(below.cluster, below.scope.as_deref()).await);
    }
}

fn is_ours(pod: &Value) -> bool {
    pod["metadata"]["labels"].get(ORIGIN_UID).is_some()
}

/// The pods with their phases, by UID or by the UID of their upper pods.
fn running(pods: &[Value], key: &str) -> BTreeSet<(String, String)> {
    let uid = |pod: &Value| {
        let metadata = &pod["metadata"];
        text(if key == "uid" { &metadata["uid"] } else { &metadata["labels"][key] }).to_owned()
    };
    pods.iter().map(|pod| (uid(pod), text(&pod["status"]["phase"]).to_owned())).collect()
}

/// Collects the upper pods that fail until told to stop.
async fn lost(pods: Api<Pod>, mut enough: tokio::sync::watch::Receiver<bool>) -> BTreeSet<String> {
    let mut lost = BTreeSet::new();
    while !*enough.borrow_and_update() {
        let list = pods.list(&ListParams::default()).await.unwrap();
        for pod in list.items {
            let status = pod.status.unwrap_or_default();
            if status.phase.as_deref() == Some("Failed") {
                let name = pod.metadata.name.unwrap_or_default();
                lost.insert(format!("{name}: {:?} {:?}", status.reason, status.message));
            }
        }
        tokio::select! {
            _ = enough.changed() => {}
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
    }
    lost
}
