//! Whether pods fit into the lower cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{Provider as _, ability::Verdict};
use vk_provider_cluster::{
    config::Settings,
    names::{NODE, ORIGIN, ORIGIN_NAME, ORIGIN_NAMESPACE, ORIGIN_UID},
};
use vk_testing::eventually;

use crate::{
    fake_api_server::DEADLINE,
    scripted_cluster::{FOREIGN_PODS, ScriptedCluster, ScriptedNode, bundle},
};

/// A lower node with this many CPUs.
fn node(name: &str, cpu: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
    "metadata": {"name": name, "uid": name, "resourceVersion": "3", "labels": {"kubernetes.io/hostname": name}},
    "status": {
        "allocatable": {"cpu": cpu.to_string(), "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }})
}

/// An upper pod that requests this many CPUs.
fn upper(name: &str, cpu: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "web", "name": name, "uid": format!("upper-{name}"), "resourceVersion": "1"},
        "spec": {"automountServiceAccountToken": false, "containers": [container(cpu)]}})
}

/// The lower pod of [`upper`] with this name, on a node or not scheduled yet.
fn lower(name: &str, cpu: u32, on: Option<&str>) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "web", "name": name, "uid": format!("lower-{name}"), "resourceVersion": "7",
            "labels": {ORIGIN: "upper", NODE: "vk", ORIGIN_UID: format!("upper-{name}")},
            "annotations": {ORIGIN_NAMESPACE: "web", ORIGIN_NAME: name}},
        "spec": {"nodeName": on, "containers": [container(cpu)]},
        "status": {"phase": "Pending"}})
}

fn container(cpu: u32) -> Value {
    json!({"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu.to_string()}}})
}

fn pod(value: Value) -> Arc<Pod> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn cluster(objects: impl IntoIterator<Item = (&'static str, Vec<Value>)>) -> ScriptedCluster {
    ScriptedCluster { watched: objects.into_iter().collect(), ..ScriptedCluster::default() }
}

async fn start(cluster: ScriptedCluster) -> ScriptedNode {
    start_with(cluster, Settings::default()).await
}

/// A node that has listed everything that fit depends on.
async fn start_with(cluster: ScriptedCluster, settings: Settings) -> ScriptedNode {
    let node = ScriptedNode::start_with(cluster, settings).await;
    eventually("the quotas are listed", DEADLINE, || async {
        let verdict = fit(&node, &[], &[pod(upper("any", 0))], &[]).remove(0);
        let is_listed = verdict != "unknown: the lower cluster is not listed yet";
        if is_listed { Ok(()) } else { Err(verdict) }
    })
    .await;
    node
}

fn fit(node: &ScriptedNode, held: &[Arc<Pod>], pods: &[Arc<Pod>], without: &[&str]) -> Vec<String> {
    let without: Vec<Arc<str>> = without.iter().map(|uid| (*uid).into()).collect();
    let verdicts = node.provider.fit().unwrap().fit(held, pods, &without);
    verdicts.iter().map(Verdict::to_string).collect()
}

fn fits(node: &ScriptedNode, held: &[Arc<Pod>], cpu: u32, without: &[&str]) -> bool {
    fit(node, held, &[pod(upper("asked", cpu))], without).remove(0).starts_with("fits")
}

#[tokio::test]
async fn liqo_2712_a_pod_fits_only_if_a_single_lower_node_has_room() {
    let node = start(cluster([("nodes", vec![node("a", 4), node("b", 4)])])).await;
    let pods = [pod(upper("big", 5)), pod(upper("small", 3)), pod(upper("other", 3)), pod(upper("third", 3))];
    assert_eq!(
        fit(&node, &[], &pods, &[]),
        [
            "0 of 2 lower nodes (2 insufficient cpu)",
            "fits (room for 2, 75% full)",
            "fits (room for 1, 75% full)",
            "0 of 2 lower nodes (2 insufficient cpu)",
        ]
    );
}

#[tokio::test]
async fn the_lower_nodes_with_the_most_room_are_named() {
    let node = start(cluster([
        ("nodes", vec![node("a", 4), node("b", 4), node("c", 1)]),
        ("pods", vec![lower("x", 3, Some("a"))]),
    ]))
    .await;
    let best = node.provider.fit().unwrap().best_nodes(&pod(upper("p", 2)), 2);
    let best: Vec<(&str, String)> =
        best.iter().map(|node| (node.name.as_str(), node.free["cpu"].to_string())).collect();
    assert_eq!(best[0], ("b", "4".to_owned()));
    assert_eq!(best[1].1, "1", "then one that lacks half of what is needed");
}

#[tokio::test]
async fn pods_of_others_and_pods_that_are_not_scheduled_yet_take_their_room() {
    let others = json!({"metadata": {"namespace": "x", "name": "f", "uid": "f"},
        "spec": {"nodeName": "a", "containers": [container(3)]}, "status": {"phase": "Running"}});
    let node = start(cluster([
        ("nodes", vec![node("a", 4), node("b", 4)]),
        (FOREIGN_PODS, vec![others]),
        ("pods", vec![lower("waits", 3, None)]),
    ]))
    .await;
    assert!(!fits(&node, &[], 2, &[]), "karmada 6783: the pod that waits will be on b");
    assert!(fits(&node, &[], 4, &["upper-waits"]));
    assert!(fits(&node, &[], 1, &[]));
}

#[tokio::test]
async fn a_held_pod_counts_once_also_when_the_lower_cluster_has_it() {
    let node = start(cluster([
        ("nodes", vec![node("a", 4), node("b", 4)]),
        ("pods", vec![lower("bound", 4, Some("a"))]),
    ]))
    .await;
    assert!(fits(&node, &[pod(upper("bound", 4))], 4, &[]));
    assert!(!fits(&node, &[pod(upper("bound", 4)), pod(upper("new", 1))], 4, &[]));
    assert!(fits(&node, &[pod(upper("bound", 4)), pod(upper("new", 1))], 4, &["upper-bound"]));
}

#[tokio::test]
async fn a_pod_that_is_about_to_be_created_below_takes_its_room() {
    let node = start(cluster([("nodes", vec![node("a", 4)])])).await;
    let _changes = node.lead();
    assert!(fits(&node, &[], 2, &[]));
    // Its ConfigMap is missing, so it is not created yet.
    let mut waits = upper("waits", 3);
    waits["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "absent"}}]);
    drop(
        tokio::time::timeout(std::time::Duration::from_millis(10), node.provider.create_pod(bundle(waits)))
            .await,
    );
    eventually("its room is taken", DEADLINE, || async {
        if fits(&node, &[], 2, &[]) { Err("it fits") } else { Ok(()) }
    })
    .await;
    assert!(fits(&node, &[], 2, &["upper-waits"]));
}

#[tokio::test]
async fn what_the_translation_does_counts() {
    let tainted = {
        let mut node = node("a", 4);
        node["spec"]["taints"] = json!([{"key": "gpu", "effect": "NoSchedule"}]);
        node
    };
    let mut settings = Settings::default();
    let tolerations = serde_json::from_value(json!([{"key": "gpu", "operator": "Exists"}])).unwrap();
    let node_a = start(cluster([("nodes", vec![tainted.clone()])])).await;
    let mut selects = upper("p", 1);
    selects["spec"]["nodeSelector"] = json!({"type": "virtual-kubelet"});
    let refused = fit(&node_a, &[], &[pod(selects.clone())], &[]);
    assert_eq!(refused, ["0 of 1 lower nodes (1 taint gpu)"], "the selector is for the virtual node only");
    settings.policy.tolerations = tolerations;
    let node_b = start_with(cluster([("nodes", vec![tainted])]), settings).await;
    assert!(fit(&node_b, &[], &[pod(selects)], &[])[0].starts_with("fits"), "pods get the toleration");
}

#[tokio::test]
async fn a_pod_that_the_lower_cluster_cannot_run_is_refused_for_good() {
    let node = start(cluster([("nodes", vec![node("a", 4)])])).await;
    let (mut system, mut claims, mut unnamed) = (upper("s", 1), upper("c", 1), upper("u", 1));
    system["metadata"]["namespace"] = json!("kube-system");
    claims["spec"]["resourceClaims"] = json!([{"name": "gpu"}]);
    unnamed["metadata"] = json!({"namespace": "web", "generateName": "web-"});
    let verdicts = node.provider.fit().unwrap().fit(&[], &[system, claims, unnamed].map(pod), &[]);
    for (verdict, words) in verdicts.iter().zip(["namespace kube-system", "spec.resourceClaims: gpu"]) {
        let Verdict::Refused { why, lasting: true } = verdict else { panic!("{verdict:?}") };
        assert!(why[0].text.contains(words) && why[0].nodes == 0, "{why:?}");
    }
    assert!(verdicts[2].fits(), "a pod that is not stored yet: {}", verdicts[2]);
}

#[tokio::test]
async fn liqo_3007_a_quota_of_the_lower_namespace_counts() {
    let quota = |namespace: &str| {
        json!({"metadata": {"namespace": namespace, "name": "team", "uid": namespace},
            "spec": {"hard": {"cpu": "8"}}, "status": {"hard": {"cpu": "8"}, "used": {"cpu": "6"}}})
    };
    let node = start(cluster([
        ("nodes", vec![node("a", 16)]),
        ("resourcequotas", vec![quota("web"), quota("other")]),
        ("pods", vec![lower("there", 6, Some("a"))]),
    ]))
    .await;
    assert_eq!(fit(&node, &[], &[pod(upper("p", 3))], &[]), ["quota \"team\" has 2 of 8 cpu left"]);
    let two = [pod(upper("p", 2)), pod(upper("q", 1))];
    assert_eq!(
        fit(&node, &[], &two, &[]),
        ["fits (room for 1, 50% full)", "quota \"team\" has 0 of 8 cpu left"],
        "the first takes what is left"
    );
    let three = [pod(upper("p", 3)), pod(upper("q", 2))];
    assert!(fit(&node, &[], &three, &[])[1].starts_with("fits"), "a refused pod takes nothing");
    assert!(fits(&node, &[], 8, &["upper-there"]), "nor does a pod that will be gone");
    assert!(fits(&node, &[pod(upper("too-big", 9))], 2, &[]), "nor one that the quota will not admit");
}

/// The verdict for a small pod, once the lower cluster is listed, if these resources may not be.
async fn verdict_without(forbidden: &'static str) -> String {
    let quota = json!({"metadata": {"namespace": "web", "name": "team", "uid": "q"},
        "spec": {"hard": {"cpu": "8"}}, "status": {"hard": {"cpu": "8"}, "used": {"cpu": "8"}}});
    let objects = cluster([("nodes", vec![node("a", 4)]), ("resourcequotas", vec![quota])]);
    let node = start(ScriptedCluster { forbidden: [forbidden].into(), ..objects }).await;
    fit(&node, &[], &[pod(upper("p", 1))], &[]).remove(0)
}

#[tokio::test]
async fn quotas_count_only_if_they_can_be_read() {
    assert_eq!(verdict_without("nothing").await, "quota \"team\" has 0 of 8 cpu left");
    assert_eq!(verdict_without("resourcequotas").await, "fits (room for 4, 25% full)");
}

#[tokio::test]
async fn nothing_is_guessed_if_lower_nodes_or_the_pods_of_others_cannot_be_read() {
    assert_eq!(verdict_without("nodes").await, "unknown: the lower nodes cannot be read");
    let pods = "unknown: the pods of others in the lower cluster cannot be read";
    assert_eq!(verdict_without("pods").await, pods);
}

#[tokio::test]
async fn only_the_lower_nodes_of_the_virtual_node_count() {
    let in_pool = |name: &str, pool: &str| {
        let mut node = node(name, 4);
        node["metadata"]["labels"]["pool"] = json!(pool);
        node
    };
    let mut virtual_node = in_pool("v", "a");
    virtual_node["metadata"]["labels"]["type"] = json!("virtual-kubelet");
    let mut settings = Settings::default();
    settings.share.selector = [("pool".to_owned(), "a".to_owned())].into();
    let nodes = vec![in_pool("a", "a"), in_pool("b", "b"), virtual_node];
    let node = start_with(cluster([("nodes", nodes)]), settings).await;
    let verdicts = fit(&node, &[], &[pod(upper("p", 4)), pod(upper("q", 4))], &[]);
    assert_eq!(verdicts, ["fits (room for 1, 100% full)", "0 of 1 lower nodes (1 insufficient cpu)"]);
}

#[tokio::test]
async fn liqo_1478_an_autoscaling_cluster_refuses_nothing_for_want_of_room() {
    let settings = Settings { autoscales: true, ..Settings::default() };
    let node = start_with(cluster([("nodes", vec![node("a", 4)])]), settings).await;
    assert_eq!(fit(&node, &[], &[pod(upper("p", 5))], &[]), ["unknown: an autoscaling cluster"]);
    assert!(fits(&node, &[], 4, &[]));
}

#[tokio::test]
async fn a_volume_of_a_bound_claim_says_on_which_nodes_it_can_be_used() {
    let claim = |name: &str, volume: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "web", "name": name, "uid": name, "resourceVersion": "4", "labels": {ORIGIN: "upper"}},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"}})
    };
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}});
    let volume = json!({"metadata": {"name": "disk", "uid": "disk"}, "spec": {"nodeAffinity": affinity}});
    let node = start(cluster([
        ("nodes", vec![node("a", 4), node("b", 2)]),
        ("persistentvolumes", vec![volume]),
        ("persistentvolumeclaims", vec![claim("data", "disk"), claim("strange", "unseen")]),
    ]))
    .await;
    let _changes = node.lead();
    let with_claim = |name: &str, cpu: u32| {
        let mut pod = upper("p", cpu);
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        self::pod(pod)
    };
    eventually("the claims and volumes are known", DEADLINE, || async {
        let verdict = fit(&node, &[], &[with_claim("data", 2)], &[]).remove(0);
        if verdict.starts_with("fits (room for 1,") { Ok(()) } else { Err(verdict) }
    })
    .await;
    let refused = fit(&node, &[], &[with_claim("data", 3)], &[]);
    assert_eq!(refused, ["0 of 2 lower nodes (1 insufficient cpu, 1 volume node affinity)"]);
    assert_eq!(fit(&node, &[], &[with_claim("strange", 1)], &[]), ["unknown: volumes that are not known"]);
    assert_eq!(fit(&node, &[], &[with_claim("new", 1)], &[]), ["unknown: unbound claims"]);
}
