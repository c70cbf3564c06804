//! Migration of a Node that the Go original registered.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{
    NodeTest, Setup, Who, annotation, capacity, condition, is_ready, label, taint, taints, uid,
    under_both_identities,
};

const META: &str = "virtual-kubelet.io/last-applied-object-meta";
const STATUS: &str = "virtual-kubelet.io/last-applied-node-status";

under_both_identities!(
    a_node_of_the_go_original_is_migrated_completely,
    invalid_annotations_of_the_go_original_are_ignored
);

fn conditions(heartbeat: &str) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "KubeletReady", "message": "kubelet is ready.",
               "lastHeartbeatTime": heartbeat, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!([
        condition("Ready", "True"),
        condition("OutOfDisk", "False"),
        condition("MemoryPressure", "False"),
        condition("DiskPressure", "False"),
        condition("NetworkUnavailable", "False"),
    ])
}

/// Registers the Node and patches its status, as the Go original does.
async fn go_original(test: &NodeTest<'_>, bookkeeping: &str) -> Node {
    let labels = json!({
        "type": "virtual-kubelet",
        "kubernetes.io/role": "agent",
        "kubernetes.io/hostname": test.name,
        "beta.kubernetes.io/os": "linux",
        "alpha.service-controller.kubernetes.io/exclude-balancer": "true",
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
        "old-label": "x",
    });
    let status = json!({
        "nodeInfo": {"operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": "v1.15.2-vk-dev",
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeProxyVersion": ""},
        "capacity": {"cpu": "2", "memory": "1Gi", "pods": "5", "example.com/old": "1"},
        "allocatable": {"cpu": "2", "memory": "1Gi", "pods": "5", "example.com/old": "1"},
        "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "conditions": conditions("2026-01-01T00:00:00Z"),
    });
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": test.name, "labels": labels},
        "spec": {"taints": [{"key": "virtual-kubelet.io/provider", "value": "mock", "effect": "NoSchedule"}]},
        "status": status,
    }))
    .unwrap();
    let manager = Some("virtual-kubelet".to_owned());
    let post = PostParams { field_manager: manager.clone(), ..PostParams::default() };
    test.nodes.create(&post, &node).await.unwrap();
    let meta = json!({"name": test.name, "labels": labels}).to_string();
    let (meta, applied) = if bookkeeping.is_empty() {
        (meta, status.to_string())
    } else {
        (bookkeeping.into(), bookkeeping.into())
    };
    let mut labels = labels;
    labels["later-label"] = json!("x");
    labels["x.k8s.io/later"] = json!("x");
    let patch = json!({
        "metadata": {"labels": labels, "annotations": {META: meta, STATUS: applied}},
        "status": {"conditions": conditions("2026-01-01T00:01:00Z"), "capacity": {"cpu": "3"}, "phase": "Running"},
    });
    let params = PatchParams { field_manager: manager, ..PatchParams::default() };
    test.nodes.patch_status(&test.name, &params, &Patch::Strategic(patch)).await.unwrap()
}

async fn a_node_of_the_go_original_is_migrated_completely(who: Who) {
    let test = NodeTest::shared(who, "go").await;
    let before = go_original(&test, "").await;
    test.kubectl(&["label", "node", &test.name, "example.com/theirs=label"]).await;
    test.kubectl(&["taint", "node", &test.name, "example.com/theirs=taint:NoSchedule"]).await;
    test.patch_status(json!({"status": {"conditions": [{"type": "Theirs", "status": "True"}]}})).await;

    let controller = test.start_ready(Setup::default()).await;
    let node = test.node().await;
    assert!(is_ready(&node));
    assert_eq!(uid(&node), uid(&before));
    assert_eq!((annotation(&node, META), annotation(&node, STATUS)), (None, None));
    assert_eq!(label(&node, "old-label"), None, "{:?}", node.metadata);
    assert_eq!(label(&node, "later-label"), None, "{:?}", node.metadata);
    assert_eq!(
        label(&node, "x.k8s.io/later"),
        (who == Who::Node).then_some("x"),
        "a node may not take it off"
    );
    assert!(condition(&node, "OutOfDisk").is_none(), "{:?}", node.status);
    assert_eq!(capacity(&node, "example.com/old"), "");
    assert_eq!((capacity(&node, "cpu").as_str(), capacity(&node, "pods").as_str()), ("20", "20"));
    assert_eq!(label(&node, "type"), Some("virtual-kubelet"));
    assert_eq!(label(&node, "kubernetes.io/role"), Some("agent"));
    assert_eq!(label(&node, "example.com/theirs"), Some("label"));
    assert!(condition(&node, "Theirs").is_some());
    assert_eq!(
        taints(&node),
        ["example.com/theirs=taint:NoSchedule", "virtual-kubelet.io/provider=mock:NoSchedule"]
    );
    assert_eq!(controller.requests("patch", "nodes", Some("Forbidden")), 0);
    controller.stop().await.unwrap();

    if who == Who::Admin {
        // Its taint is ours now.
        let setup = Setup { taints: vec![taint("example.com/ours", "", "NoSchedule")], ..Setup::default() };
        let _controller = test.start_ready(setup).await;
        test.wait_for("the old taint goes", |node| {
            taints(node) == ["example.com/ours=:NoSchedule", "example.com/theirs=taint:NoSchedule"]
        })
        .await;
    }
}

/// The Go original hangs in this case.
async fn invalid_annotations_of_the_go_original_are_ignored(who: Who) {
    let test = NodeTest::shared(who, "go-broken").await;
    go_original(&test, "{not json").await;
    let _controller = test.start_ready(Setup::default()).await;
    let node = test.node().await;
    assert_eq!((annotation(&node, META), annotation(&node, STATUS)), (None, None));
    assert_eq!(label(&node, "old-label"), None);
}
