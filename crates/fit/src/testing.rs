//! Nodes and pods for tests.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use vk_provider::ability::Verdict;

use crate::{Query, Snapshot};

/// A Ready node with 4 CPUs, 8Gi and 10 pods, and other fields from `change`, a JSON merge patch.
pub(crate) fn node(name: &str, change: Value) -> Node {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    merge(&mut node, change);
    serde_json::from_value(node).unwrap()
}

/// A pod with one container, and other fields from `change`.
pub(crate) fn pod(name: &str, change: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"containers": [{"name": "main"}]},
    });
    merge(&mut pod, change);
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A pod that requests this many CPUs.
pub(crate) fn cpu_pod(name: &str, cpu: &str) -> Arc<Pod> {
    pod(name, json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}))
}

/// The pod on a node.
pub(crate) fn bound(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
    pod
}

pub(crate) fn snapshot(nodes: &[Node]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        snapshot.apply_node(node);
    }
    snapshot
}

/// The verdict on one pod.
pub(crate) fn fit(snapshot: &Snapshot, pod: &Arc<Pod>) -> Verdict {
    snapshot.fit(&Query { pods: &[Arc::clone(pod)], ..Query::default() }).remove(0)
}

/// The causes of a refusal, as shown to people.
pub(crate) fn refusal(snapshot: &Snapshot, pod: &Arc<Pod>) -> String {
    match fit(snapshot, pod) {
        verdict @ Verdict::Refused { .. } => verdict.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A JSON merge patch.
pub(crate) fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(fields.entry(key).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change,
    }
}
