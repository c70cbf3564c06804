use serde_json::{Value, json};

use super::*;

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_pod_is_ours_only_when_no_other_gate_is_left() {
    let with = |gates: Value| gating(&pod(json!({"spec": {"containers": [], "schedulingGates": gates}})));
    assert_eq!(with(json!([])), Gating::Open);
    assert_eq!(with(json!([{"name": "x"}])), Gating::Open);
    assert_eq!(with(json!([{"name": names::GATE}])), Gating::Ours);
    assert_eq!(with(json!([{"name": "x"}, {"name": names::GATE}])), Gating::OthersFirst);
    assert_eq!(gating(&Pod::default()), Gating::Open);
}

/// Two pods of a StatefulSet, as admission leaves them.
#[test]
fn pods_of_one_controller_have_the_same_shape() {
    let replica = |name: &str, suffix: &str| {
        pod(json!({
            "metadata": {
                "name": name, "uid": suffix, "namespace": "team", "resourceVersion": suffix,
                "labels": {"app": "db", "statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": suffix},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u", "controller": true}],
            },
            "spec": {
                "hostname": name, "nodeName": suffix, "schedulingGates": [{"name": suffix}],
                "volumes": [{"name": format!("kube-api-access-{suffix}"), "projected": {"sources": []}}],
                "containers": [{"name": "main", "volumeMounts": [{"name": format!("kube-api-access-{suffix}"), "mountPath": "/t"}]}],
            },
            "status": {"phase": suffix},
        }))
    };
    let (first, second) = (replica("db-0", "a"), replica("db-1", "b"));
    assert_eq!(shape(&first), shape(&second));
    let differs = |change: Value| {
        let mut changed = serde_json::to_value(&second).unwrap();
        json_patch::merge(&mut changed, &change);
        shape(&pod(changed)) != shape(&first)
    };
    assert!(differs(json!({"metadata": {"namespace": "other"}})), "its quotas");
    assert!(differs(json!({"metadata": {"labels": {"app": "x"}}})), "affinity of others");
    assert!(differs(json!({"metadata": {"annotations": {names::LOWER_NODES: "disk=ssd"}}})));
    assert!(differs(json!({"metadata": {"ownerReferences": null}})), "the avoid table");
    assert!(differs(json!({"spec": {"nodeSelector": {"a": "b"}}})));
    assert!(differs(json!({"spec": {"priority": 5}})));
}

#[test]
fn a_pod_has_run_if_any_container_has() {
    let with = |status: Value| has_run(&pod(json!({"spec": {"containers": []}, "status": status})));
    let container = |state: Value| json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    assert!(!with(json!({})));
    assert!(!with(
        json!({"containerStatuses": [container(json!({"waiting": {"reason": "LowerUnschedulable"}}))]})
    ));
    assert!(with(json!({"containerStatuses": [container(json!({"running": {}}))]})));
    assert!(with(json!({"initContainerStatuses": [container(json!({"terminated": {"exitCode": 0}}))]})));
}

#[test]
fn only_a_node_selector_that_placement_added_is_removed() {
    let pinned = |annotations: Value| {
        let selector = json!({names::HOSTNAME: "vk-a", "type": "virtual-kubelet"});
        let pod = pod(json!({
            "metadata": {"annotations": annotations},
            "spec": {"containers": [], "nodeName": "vk-a", "nodeSelector": selector},
        }));
        unpinned(&pod).spec.unwrap()
    };
    let spec = pinned(json!({names::PINNED: "true"}));
    assert_eq!(spec.node_selector.unwrap().into_keys().collect::<Vec<_>>(), ["type"]);
    assert_eq!(spec.node_name, None);
    assert_eq!(pinned(json!({})).node_selector.unwrap().len(), 2);
}
