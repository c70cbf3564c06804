//! Pods that are on trial on a virtual node before they are bound, with real schedulers in both clusters.

use std::{collections::BTreeMap, fs, time::Duration};

use serde_json::{Value, json};
use tokio::sync::watch;
use vk_supervisor::Clock;
use vk_testing::{
    ControlPlane,
    control_plane::{AUDIT_METADATA, Options},
    eventually,
};

use super::{PLACED, PlacementTest, gated, lower_pods, placement, pod, running, spec};
use crate::live::cluster::{
    capacity::{foreign, offers},
    cluster_pair::{ClusterPair, SCHEDULED, lower, start_lower_with},
    namespace_client::{NamespaceClient, TIMEOUT, condition, text},
};

pub(super) const TRIAL: &str = "multicluster.virtual-kubelet.io/trial";
const TRIAL_UNTIL: &str = "multicluster.virtual-kubelet.io/trial-until";

fn trial(pod: &Value) -> &Value {
    &pod["metadata"]["labels"][TRIAL]
}

/// Fit does not model required anti-affinity, so only the lower scheduler knows which pods have a lower node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn pods_of_which_nodes_cannot_tell_whether_they_fit_are_bound_where_the_lower_scheduler_placed_them() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "trial"]).await;
    let account = test.account().await;
    let process = placement(&account, &["--gates", "trial", "--trial-patience", "2s"]);
    let team = test.namespace("trial").await;
    let (mut pairs, mut places) = (Vec::new(), Vec::new());
    for name in ["trial-a", "trial-b"] {
        // With the same namespace, two lower pods of one pod could not exist for want of another name.
        let namespace = format!("{}-{name}", team.namespace);
        let config = json!({"namespaces": {&team.namespace: namespace}});
        pairs.push(ClusterPair::open(&test.upper, lower, name, 2, config, &[]).await);
        places.push(NamespaceClient::new(lower, &namespace));
    }
    let (enough, watched) = watch::channel(false);
    let observed = lower_pods::observe(&places, watched);
    let mut spec = spec(1);
    spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}},
    ]}});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 5,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web", "virtual-pod": "true"}}, "spec": spec},
        },
    });
    let below = async || places[0].list("pods").await.len() + places[1].list("pods").await.len();
    let fill = async {
        team.create("deployments", &deployment).await;
        eventually("four run, and the fifth waits behind its gate", TIMEOUT, || async {
            let (above, below) = (team.list("pods").await, below().await);
            let bound_waiting = above.iter().any(|pod| {
                pod["spec"]["nodeName"].is_string() && condition(pod, SCHEDULED)["status"] == "False"
            });
            assert!(!bound_waiting, "a bound pod waits below: {above:?}");
            let counts = (running(&above), gated(&above), below);
            if matches!(counts, (4, 1, 4 | 5)) {
                Ok(())
            } else {
                Err(format!("{counts:?}\n{}", process.stderr()))
            }
        })
        .await;
        // The fifth is tried on one node after the other.
        let waiting =
            team.list("pods").await.into_iter().find(|pod| pod["spec"]["schedulingGates"].is_array());
        let name = text(&waiting.unwrap()["metadata"]["name"]).to_owned();
        for pair in &pairs {
            team.wait_event(&name, &["NoFeasibleNode", &format!("{}: tried: ", pair.node)]).await;
        }
        enough.send(true).unwrap();
    };
    let (report, ()) = tokio::join!(observed, fill);
    assert_eq!(report.doubled, Vec::<String>::new(), "two lower pods of one pod at the same time");
    eventually("the labels of trials are gone from pods that run", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let left = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string() && !trial(pod).is_null());
        let left: Vec<_> = left.map(|pod| pod["metadata"].to_string()).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .await;
    for pod in team.list("pods").await.iter().filter(|pod| pod["spec"]["nodeName"].is_string()) {
        assert_eq!(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"], pod["spec"]["nodeName"]);
        assert_eq!(condition(pod, PLACED)["reason"], "Tried", "{pod}");
    }
    // When one of them goes, the fifth gets its place.
    let gone = team.list("pods").await.into_iter().find(|pod| pod["spec"]["nodeName"].is_string()).unwrap();
    team.patch("deployments/web", &json!({"spec": {"replicas": 4}})).await;
    team.delete(&format!("pods/{}", text(&gone["metadata"]["name"])), None).await;
    eventually("all that are wanted run", TIMEOUT, || async {
        let above = team.list("pods").await;
        let counts = (running(&above), above.len(), below().await);
        if counts == (4, 4, 4) { Ok(()) } else { Err(format!("{counts:?}\n{}", process.stderr())) }
    })
    .await;
    let log = process.stderr();
    assert!(!log.contains("orbidden") && !log.contains("placement may"), "{log}");
}

/// Placement begins a trial and dies: the node ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_trial_that_nobody_ends_is_ended_by_its_node_and_users_cannot_keep_pods_on_trial() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "trial"]).await;
    let pair = ClusterPair::open(&test.upper, lower, "trial-over", 1, json!({}), &[]).await;
    let node = NamespaceClient::new(&test.upper, "default").get(&format!("nodes/{}", pair.node)).await;
    assert_eq!(node["metadata"]["annotations"]["virtual-kubelet.io/placement"], "fit,trial", "{node}");
    let team = test.namespace("trial-over").await;
    let below = NamespaceClient::new(lower, &team.namespace);
    let until = |after| (Clock::system().now() + Duration::from_secs(after)).to_string();
    let metadata =
        |until: Option<&str>| json!({"labels": {TRIAL: pair.node}, "annotations": {TRIAL_UNTIL: until}});
    // What placement writes.
    let begin = async |name: &str, until: &str| {
        let mut conditions = team.get(&format!("pods/{name}")).await["status"]["conditions"].clone();
        for kind in [PLACED, SCHEDULED] {
            let condition = json!({"type": kind, "status": "Unknown", "reason": "OnTrial", "lastTransitionTime": Clock::system().now()});
            conditions.as_array_mut().unwrap().push(condition);
        }
        let patch = json!({"metadata": metadata(Some(until)), "status": {"conditions": conditions}});
        team.patch(&format!("pods/{name}/status"), &patch).await;
    };

    team.create("pods", &pod("short", 1)).await;
    begin("short", &until(20)).await;
    let found = team
        .wait_for("pods/short", "has a lower node", |pod| condition(pod, SCHEDULED)["status"] == "True")
        .await;
    assert_eq!(found["status"]["phase"], "Pending", "its node says nothing else: {found}");
    assert!(found["status"]["containerStatuses"].is_null(), "{found}");
    assert!(found["spec"]["schedulingGates"].is_array(), "{found}");
    below.wait_exists("pods/short").await;
    let ended = team.wait_for("pods/short", "is not on trial any more", |pod| trial(pod).is_null()).await;
    assert!(ended["metadata"]["annotations"][TRIAL_UNTIL].is_null(), "{ended}");
    assert!(condition(&ended, SCHEDULED).is_null(), "{ended}");
    below.wait_deleted("pods/short").await;

    // A label that placement has not set is no trial, whatever time it gives.
    team.create("pods", &pod("by-user", 1)).await;
    for until in [Some(&*until(60)), Some(&*until(3 * 3600)), None, Some("tomorrow")] {
        team.patch("pods/by-user", &json!({"metadata": metadata(until)})).await;
        team.wait_for("pods/by-user", "is not on trial", |pod| trial(pod).is_null()).await;
        assert!(below.find("pods/by-user").await.is_none());
    }
    // A gated pod that is deleted leaves at once, and its lower pod follows.
    team.create("pods", &pod("deleted", 1)).await;
    begin("deleted", &until(60)).await;
    below.wait_exists("pods/deleted").await;
    team.delete("pods/deleted", None).await;
    team.wait_deleted("pods/deleted").await;
    below.wait_deleted("pods/deleted").await;
}

/// Patience does not help against admission, and that of this process is longer than the test may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_trial_of_a_pod_that_the_admission_of_a_lower_cluster_refuses_ends_at_once() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "trial"]).await;
    let process = placement(&test.account().await, &["--gates", "trial", "--trial-patience", "10m"]);
    let team = test.namespace("trial-refused").await;
    let open = async |name: &str, standard: &str| {
        let below = format!("{}-{name}", team.namespace);
        let labels = json!({"pod-security.kubernetes.io/enforce": standard});
        let client = NamespaceClient::new(lower, &below);
        client.create("namespaces", &json!({"metadata": {"name": below, "labels": labels}})).await;
        client.wait_exists("serviceaccounts/default").await;
        let config = json!({"namespaces": {&team.namespace: below}});
        ClusterPair::open(&test.upper, lower, name, 1, config, &[]).await
    };
    let strict = open("trial-strict", "restricted").await;
    team.create("pods", &pod("moves-on", 1)).await;
    let tried = format!("{}: tried: ", strict.node);
    team.wait_event("moves-on", &["NoFeasibleNode", &tried, "violates PodSecurity"]).await;
    let free = open("trial-free", "privileged").await;
    let runs = team.wait_running("moves-on").await;
    assert_eq!(runs["spec"]["nodeName"], json!(free.node), "{runs}\n{}", process.stderr());
}

/// A trial shows what the lower scheduler thinks of a pod, and not what kube-scheduler does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_kube_scheduler_does_not_bind_within_a_minute_after_its_trial_leaves_the_node_and_is_evicted()
 {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "trial"]).await;
    let process = placement(&test.account().await, &["--gates", "trial"]);
    let pair = ClusterPair::open(&test.upper, lower, "trial-unbound", 1, json!({}), &[]).await;
    let team = test.namespace("trial-unbound").await;
    let below = NamespaceClient::new(lower, &team.namespace);
    let mut spec = spec(1);
    // A hard spread over a label of virtual nodes stays in the upper cluster, and this node does not have the label.
    spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web", "virtual-pod": "true"}}, "spec": spec},
        },
    });
    team.create("deployments", &deployment).await;
    let first = eventually("the pod ran on trial, and is not bound", TIMEOUT, || async {
        let pods = team.list("pods").await;
        let is_free = |pod: &&Value| {
            condition(pod, PLACED)["status"] == "True"
                && condition(pod, "PodScheduled")["reason"] == "Unschedulable"
                && pod["spec"]["nodeName"].is_null()
        };
        pods.iter().find(is_free).cloned().ok_or_else(|| format!("{pods:?}\n{}", process.stderr()))
    })
    .await;
    let (name, uid) = (text(&first["metadata"]["name"]).to_owned(), first["metadata"]["uid"].clone());
    assert_eq!(first["spec"]["nodeSelector"]["kubernetes.io/hostname"], json!(pair.node), "{first}");
    below.wait_exists(&format!("pods/{name}")).await;
    team.wait_event(&name, &["NotBound", "topology spread constraints"]).await;
    eventually("it is gone above and below, and another one has come", TIMEOUT, || async {
        let (above, lower) = (team.list("pods").await, below.find(&format!("pods/{name}")).await);
        let is_other = above.iter().any(|pod| pod["metadata"]["uid"] != uid);
        let is_gone = above.iter().all(|pod| pod["metadata"]["uid"] != uid);
        if is_other && is_gone && lower.is_none() { Ok(()) } else { Err(format!("{above:?}\n{lower:?}")) }
    })
    .await;
    team.delete("deployments/web", None).await;
}

/// The user sees on the gated pod where it is tried, and what the lower cluster says about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_gated_pod_on_trial_shows_its_nominated_node_and_the_events_of_its_lower_pod() {
    let lower = lower().await;
    let test = PlacementTest::new(&["--gates", "trial"]).await;
    let process = placement(&test.account().await, &["--gates", "trial"]);
    let pair =
        ClusterPair::open(&test.upper, lower, "trial-events", 2, json!({"autoscales": true}), &[]).await;
    let team = test.namespace("trial-events").await;
    let below = NamespaceClient::new(lower, &team.namespace);
    // Others leave 3 of 8 CPUs of each lower node, and the lower cluster may add one.
    let others = NamespaceClient::new(lower, lower.namespace("others").await.unwrap().name());
    for index in 0..2 {
        let other = foreign(&format!("other-{index}"), &pair.lower_node(index), &json!({"cpu": "5"}));
        others.create("pods", &other).await;
    }
    offers(&test.upper, &pair.node, &json!({"cpu": "6"})).await;
    team.create("pods", &pod("waits", 5)).await;
    below.wait_event("waits", &["FailedScheduling", "Insufficient cpu"]).await;
    team.wait_event("waits", &["FailedScheduling", "Insufficient cpu"]).await;
    let waits = team
        .wait_for("pods/waits", "is on trial", |pod| condition(pod, SCHEDULED)["status"] == "False")
        .await;
    assert_eq!(waits["metadata"]["labels"][TRIAL], json!(pair.node), "{waits}\n{}", process.stderr());
    assert_eq!(waits["status"]["nominatedNodeName"], json!(pair.node), "{waits}");
    assert!(waits["spec"]["schedulingGates"].is_array() && waits["spec"]["nodeName"].is_null(), "{waits}");
    let shown = team.kubectl(&["get", "pod", "waits", "-o", "wide", "--no-headers"]).await;
    assert!(shown.contains("SchedulingGated") && shown.contains(&pair.node), "{shown}");
}

/// What a pod costs that is placed at the first attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_placed_at_the_first_trial_costs_six_upper_and_two_lower_writes() {
    let audited = |options: Options| Options { audit_policy: Some(AUDIT_METADATA.to_owned()), ..options };
    let lower = start_lower_with(audited(Options::with_controllers())).await;
    let test = PlacementTest::with(audited(Options::with_controllers()), &["--gates", "trial"]).await;
    let account = test.account().await;
    let process = placement(&account, &["--gates", "trial"]);
    let _pair = ClusterPair::open(&test.upper, &lower, "trial-cost", 1, json!({}), &[]).await;
    let team = test.namespace("trial-cost").await;
    // The first pod pays for the namespace below and what belongs to it. On a busy machine a node also sees what is usually over before it looks,
    // and reports it: the cheapest pod counts.
    let names = ["first", "second", "third", "fourth"];
    for name in names {
        team.create("pods", &pod(name, 1)).await;
        team.wait_running(name).await;
        team.wait_for(&format!("pods/{name}"), "is not on trial any more", |pod| trial(pod).is_null()).await;
        team.wait_for(&format!("pods/{name}"), "was placed", |pod| {
            condition(pod, PLACED)["status"] == "True"
        })
        .await;
    }
    let sum = |writes: &BTreeMap<String, usize>| writes.values().sum::<usize>();
    // Others are the user and the schedulers, and below the lower nodes.
    let above = names.map(|name| writes(&test.upper, name, &["create ", "create binding"]));
    let below = names.map(|name| writes(&lower, name, &["create binding", "patch status"]));
    assert!(above[1..].iter().map(sum).min() <= Some(6), "{above:#?}\n{}", process.stderr());
    assert!(below[1..].iter().map(sum).min() <= Some(2), "{below:#?}");
}

/// The successful writes to a pod but for those of others, by verb and subresource.
fn writes(cluster: &ControlPlane, name: &str, of_others: &[&str]) -> BTreeMap<String, usize> {
    let log = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let mut found = BTreeMap::new();
    for entry in log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let (object, verb) = (&entry["objectRef"], text(&entry["verb"]));
        let is_write = ["create", "update", "patch", "delete"].contains(&verb);
        let is_pod = object["resource"] == "pods" && object["name"] == name;
        let what = format!("{verb} {}", text(&object["subresource"]));
        let is_done = entry["responseStatus"]["code"].as_u64() < Some(300);
        if is_pod && is_write && is_done && !of_others.contains(&&*what) {
            *found.entry(what).or_default() += 1;
        }
    }
    found
}
