//! What virtual nodes cost the API servers while nothing happens.

use std::{collections::BTreeMap, env, fs, time::Duration};

use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tempfile::TempDir;
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually,
};

use super::{
    super::{becomes_ready, run_as},
    cluster_pair::{SITE, mock_nodes, start_lower_with},
    namespace_client::NamespaceClient,
};

/// The user of the command, in both clusters.
const USER: &str = "idle-virtual-kubelet";
/// The label of the lower nodes.
const LOWER: &str = "idle";
/// The virtual nodes.
const NODES: [&str; 2] = ["vk-idle-a", "vk-idle-b"];
/// Pods that a lower node runs.
const PODS_PER_NODE: usize = 150;
/// Fewer requests than this in ten minutes, whatever the number of pods and copies.
const LIMIT: usize = 200;
/// Objects that are created at the same time.
const CONCURRENCY: usize = 32;

fn number(variable: &str, default: usize) -> usize {
    env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// The requests of the command in an audit log: what was asked, by the id of the request.
fn requests(cluster: &ControlPlane) -> BTreeMap<String, String> {
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = entries.filter(|entry| entry["user"]["username"] == USER);
    let asked = ours.map(|entry| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (verb, object) = (text(&entry["verb"]), &entry["objectRef"]);
        let what = if object.is_null() { text(&entry["requestURI"]) } else { text(&object["resource"]) };
        (text(&entry["auditID"]), format!("{verb} {what}"))
    });
    asked.collect()
}

/// How many requests of each kind are new.
fn new_requests(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, what) in now.iter().filter(|(id, _)| !before.contains_key(*id)) {
        *counts.entry(what.clone()).or_default() += 1;
    }
    counts
}

fn pod(index: usize) -> Value {
    let volume = |kind: &str, object: Value| json!({"name": kind, "projected": {"sources": [object]}});
    json!({"metadata": {"name": format!("pod-{index}")}, "spec": {
    "nodeName": NODES[index % NODES.len()], "automountServiceAccountToken": false,
    "containers": [{"name": "main", "image": "example.com/app:1"}],
    "volumes": [
        volume("one", json!({"configMap": {"name": format!("one-{index}")}})),
        volume("two", json!({"configMap": {"name": format!("two-{index}")}})),
        volume("secret", json!({"secret": {"name": format!("secret-{index}")}})),
    ]}})
}

/// Two virtual nodes of one lower cluster, with three copies for each pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn idle_pods_and_copies_cost_watches_and_not_a_request_each() {
    let (pods, seconds) = (number("VK_IDLE_PODS", 50), number("VK_IDLE_SECONDS", 60));
    let audited = |options: Options| Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..options };
    let upper = ControlPlane::start(audited(Options::default())).await.unwrap();
    let lower = start_lower_with(audited(Options::with_controllers())).await;
    let lower_nodes = u16::try_from(pods / PODS_PER_NODE + 1).unwrap();
    let _lower_nodes = mock_nodes(&lower, LOWER, lower_nodes);
    for index in 0..lower_nodes {
        becomes_ready(&lower, &format!("{LOWER}-lower-{index}")).await;
    }
    let folder = TempDir::new().unwrap();
    let kubeconfig = |cluster: &ControlPlane, name: &str| {
        let path = folder.path().join(name);
        cluster.write_kubeconfig(&path, USER, &["system:masters"]).unwrap();
        path
    };
    let (above, below) = (kubeconfig(&upper, "upper"), kubeconfig(&lower, "lower"));
    let nodes = NODES.map(|name| json!({"name": name}));
    let config =
        json!({"kubeconfig": below, "virtualNodes": true, "nodeSelector": {SITE: LOWER}, "nodes": nodes});
    let path = folder.path().join("provider.json");
    fs::write(&path, config.to_string()).unwrap();
    let flags = ["--provider", "cluster", "--nodename", "idle", "--provider-config", path.to_str().unwrap()];
    let _process = run_as(&above, &flags).start();
    for name in NODES {
        becomes_ready(&upper, name).await;
    }

    let namespace = upper.namespace("idle").await.unwrap().name().to_owned();
    let client = &NamespaceClient::new(&upper, &namespace);
    stream::iter(0..pods)
        .for_each_concurrent(CONCURRENCY, |index| async move {
            let data = json!({"key": "dmFsdWU="});
            for (kind, name) in [("configmaps", "one"), ("configmaps", "two"), ("secrets", "secret")] {
                let object = json!({"metadata": {"name": format!("{name}-{index}")}, "data": data});
                client.create(kind, &object).await;
            }
            client.create("pods", &pod(index)).await;
        })
        .await;
    eventually("all pods run", Duration::from_mins(15), || async {
        let all = client.list("pods").await;
        let running = all.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        if running == pods { Ok(()) } else { Err(format!("{running} of {pods}")) }
    })
    .await;
    let copies = NamespaceClient::new(&lower, &namespace);
    let copied = copies.list("configmaps").await.len() + copies.list("secrets").await.len();
    assert!(copied >= 3 * pods, "{copied} copies for {pods} pods");

    // What belongs to the creation of the pods is over when almost nothing is asked for some seconds.
    eventually("it becomes quiet", Duration::from_mins(3), || async {
        let before = [&upper, &lower].map(requests);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = [&upper, &lower].map(requests);
        let new: usize = (0..2).map(|index| now[index].len() - before[index].len()).sum();
        if new < 10 { Ok(()) } else { Err(format!("{new} requests in 5 s")) }
    })
    .await;
    let before = [&upper, &lower].map(requests);
    tokio::time::sleep(Duration::from_secs(1) * u32::try_from(seconds).unwrap()).await;
    let now = [&upper, &lower].map(requests);
    let [mut above, below] = [0, 1].map(|index| new_requests(&before[index], &now[index]));
    report(pods, seconds, &above, &below);
    // A lease is renewed every ten seconds by any kubelet.
    above.retain(|what, _| !what.ends_with(" leases"));
    for (cluster, counts) in [("upper", above), ("lower", below)] {
        let per_ten_minutes = counts.values().sum::<usize>() * 600 / seconds;
        assert!(per_ten_minutes < LIMIT, "{cluster}: {per_ten_minutes} requests in ten minutes: {counts:?}");
    }
}

#[expect(clippy::print_stderr, reason = "the numbers of a long run are its result")]
fn report(pods: usize, seconds: usize, above: &BTreeMap<String, usize>, below: &BTreeMap<String, usize>) {
    for (cluster, counts) in [("upper", above), ("lower", below)] {
        let sum: usize = counts.values().sum();
        eprintln!("{cluster} cluster, {pods} pods, {seconds} idle seconds: {sum} requests: {counts:?}");
    }
}
