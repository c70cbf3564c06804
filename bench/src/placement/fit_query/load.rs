//! Lower nodes and their pods, and the pods in question.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use vk_provider::{ability::Verdict, placement::FitQuery};

/// Pods of one Deployment.
const REPLICAS: usize = 50;
/// Deployments whose pods are asked about.
const DEPLOYMENTS: usize = 100;

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked<'a> {
    /// A virtual node, about pods of this namespace.
    VirtualNode(&'a str),
    /// A snapshot of its lower nodes.
    Snapshot,
}

/// The pods in question: ones that fit, ones that select nodes, and ones that are refused everywhere, in turn.
pub(super) struct QueryLoad {
    pods: Vec<Arc<Pod>>,
}

// === impl QueryLoad ===

impl QueryLoad {
    pub(super) fn new(asked: Asked<'_>) -> anyhow::Result<Self> {
        let namespace = if let Asked::VirtualNode(namespace) = asked { namespace } else { "below" };
        let mut pods = Vec::new();
        for deployment in 0..DEPLOYMENTS {
            // More than any node has.
            let kinds = [pod(deployment * REPLICAS, None), selecting_pod(asked), requesting("1000")];
            for (kind, mut pod) in kinds.into_iter().enumerate() {
                pod["metadata"]["name"] = json!(format!("asked-{deployment}-{kind}"));
                pod["metadata"]["namespace"] = json!(namespace);
                pods.push(Arc::new(serde_json::from_value(pod)?));
            }
        }
        Ok(Self { pods })
    }

    /// The pod of a query.
    pub(super) fn pod(&self, index: usize) -> &Arc<Pod> {
        &self.pods[index % self.pods.len()]
    }

    /// The pods of this many Deployments.
    pub(super) fn different_pods(&self, count: usize) -> Vec<Arc<Pod>> {
        self.pods.iter().step_by(3).take(count).cloned().collect()
    }

    pub(super) fn query(&self, index: usize) -> FitQuery {
        FitQuery { pods: vec![Arc::clone(self.pod(index))], ..FitQuery::default() }
    }

    /// Checks that the answer to a query is the right one.
    #[expect(clippy::unused_self, reason = "reads with the query")]
    pub(super) fn check(&self, index: usize, verdicts: &[Verdict]) -> anyhow::Result<()> {
        let is_right =
            matches!((verdicts, index % 3), ([Verdict::Fits { .. }], 0 | 1) | ([Verdict::Refused { .. }], 2));
        anyhow::ensure!(is_right, "query {index} was answered with {verdicts:?}");
        Ok(())
    }
}

/// A lower node with many labels.
pub(super) fn node(index: usize) -> Value {
    let mut labels: serde_json::Map<_, _> = (0..15)
        .map(|label| (format!("example.com/label-{label}"), json!(format!("value-{}", index % (label + 1)))))
        .collect();
    labels.insert("kubernetes.io/hostname".into(), json!(format!("node-{index}")));
    labels.insert("topology.kubernetes.io/zone".into(), json!(format!("zone-{}", index % 3)));
    let taints =
        if index.is_multiple_of(10) { json!([{"key": "gpu", "effect": "NoSchedule"}]) } else { json!([]) };
    let amounts = json!({"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"});
    json!({
        "metadata": {"name": format!("node-{index}"), "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Bench", "message": "bench",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    })
}

/// A pod of one of many Deployments, each with requests of its own.
pub(super) fn pod(index: usize, node: Option<usize>) -> Value {
    let deployment = index / REPLICAS;
    json!({
        "metadata": {"name": format!("pod-{index}"), "labels": {"app": format!("app-{deployment}")}},
        "spec": {
            "nodeName": node.map(|node| format!("node-{node}")),
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{"name": "main", "image": "bench", "resources": {"requests": {
                "cpu": format!("{}m", 100 + deployment % 97), "memory": format!("{}Mi", 128 + deployment % 89)}}}],
        },
    })
}

/// A pod that selects every twelfth node or so.
fn selecting_pod(asked: Asked<'_>) -> Value {
    let mut pod = requesting("4");
    if asked == Asked::Snapshot {
        pod["spec"]["nodeSelector"] = json!({"topology.kubernetes.io/zone": "zone-1"});
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "example.com/label-7", "operator": "In", "values": ["value-1", "value-3"]},
            {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1"]},
        ]}]}}});
    } else {
        // The provider makes the same of it.
        pod["metadata"]["annotations"] = json!({
            "multicluster.virtual-kubelet.io/lower-nodes":
                "topology.kubernetes.io/zone=zone-1,example.com/label-7 in (value-1,value-3),kubernetes.io/hostname notin (node-1)",
        });
    }
    pod
}

fn requesting(cpu: &str) -> Value {
    json!({"metadata": {}, "spec": {"containers": [
        {"name": "main", "image": "bench", "resources": {"requests": {"cpu": cpu}}},
    ]}})
}

/// A percentile of times in ascending order, in milliseconds.
pub(super) fn percentile(times: &[Duration], percent: usize) -> f64 {
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).map_or(0.0, Duration::as_secs_f64) * 1000.0
}
