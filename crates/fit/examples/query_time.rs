//! Measures a snapshot: its memory, and the time of a query.
//!
//! ```text
//! cargo run --release --package vk-fit --example query_time
//! ```

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement, run by hand")]
#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a measurement, run by hand")]

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;
use vk_fit::{Query, Snapshot};

/// Queries of each kind.
const QUERIES: usize = 2000;
/// Pods of one Deployment.
const REPLICAS: usize = 50;

fn main() {
    for (nodes, pods) in [(1_000, 20_000), (10_000, 200_000)] {
        let before = resident();
        let begin = Instant::now();
        let mut snapshot = Snapshot::default();
        for index in 0..nodes {
            snapshot.apply_node(&node(index));
        }
        for index in 0..pods {
            snapshot.apply_pod(&pod(index, Some(index % nodes)));
        }
        let (filled, size) = (begin.elapsed(), snapshot.size());
        println!("{nodes} nodes, {pods} pods ({} shapes, {} label sets):", size.shapes, size.label_sets);
        println!("  {:.1} MB, filled in {filled:?}", (resident() - before) as f64 / 1e6);
        let update = time(|index| {
            snapshot.apply_pod(&pod(index, Some((index + 1) % nodes)));
        });
        println!("  {:<44} {update}", "an event of a pod, with making the pod");
        let begin = Instant::now();
        assert_eq!(snapshot.repair(), 0);
        println!("  {:<44} {:?}", "a full recompute", begin.elapsed());

        let small = vec![Arc::new(pod(1, None))];
        let selecting = vec![Arc::new(selecting_pod())];
        let large = vec![Arc::new(requesting("1000"))];
        let mixed: Vec<Arc<Pod>> = (0..100).map(|index| Arc::new(pod(index * REPLICAS, None))).collect();
        let equal: Vec<Arc<Pod>> = (0..100).map(|_| Arc::clone(&small[0])).collect();
        for (what, pods) in [
            ("a pod that fits", &small),
            ("a pod with selector, affinity, tolerations", &selecting),
            ("a pod that is refused everywhere", &large),
            ("100 equal pods in one query", &equal),
            ("100 different pods in one query", &mixed),
        ] {
            let times = time(|_| drop(snapshot.fit(&Query { pods, ..Query::default() })));
            println!("  {what:<44} {times}");
        }
    }
}

fn node(index: usize) -> Node {
    let mut labels: serde_json::Map<_, _> = (0..15)
        .map(|label| (format!("example.com/label-{label}"), json!(format!("value-{}", index % (label + 1)))))
        .collect();
    labels.insert("kubernetes.io/hostname".into(), json!(format!("node-{index}")));
    labels.insert("topology.kubernetes.io/zone".into(), json!(format!("zone-{}", index % 3)));
    let taints =
        if index.is_multiple_of(10) { json!([{"key": "gpu", "effect": "NoSchedule"}]) } else { json!([]) };
    serde_json::from_value(json!({
        "metadata": {"name": format!("node-{index}"), "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .unwrap()
}

/// A pod of one of many Deployments, each with requests of its own.
fn pod(index: usize, node: Option<usize>) -> Pod {
    let deployment = index / REPLICAS;
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{index}"), "namespace": "team", "uid": uid(index),
                     "labels": {"app": format!("app-{deployment}")}},
        "spec": {
            "nodeName": node.map(|node| format!("node-{node}")),
            "containers": [{"name": "main", "resources": {"requests": {
                "cpu": format!("{}m", 100 + deployment % 97), "memory": format!("{}Mi", 128 + deployment % 89)}}}],
        },
    }))
    .unwrap()
}

fn requesting(cpu: &str) -> Pod {
    let container = json!({"name": "main", "resources": {"requests": {"cpu": cpu}}});
    serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [container]}})).unwrap()
}

fn selecting_pod() -> Pod {
    let mut pod = serde_json::to_value(requesting("4")).unwrap();
    pod["spec"]["nodeSelector"] = json!({"topology.kubernetes.io/zone": "zone-1"});
    pod["spec"]["tolerations"] = json!([{"key": "gpu", "operator": "Exists"}]);
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
    "nodeSelectorTerms": [{"matchExpressions": [
        {"key": "example.com/label-7", "operator": "In", "values": ["value-1", "value-3"]},
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1"]},
    ]}]}}});
    serde_json::from_value(pod).unwrap()
}

fn uid(index: usize) -> String {
    format!("{index:08x}-0000-4000-8000-{:012x}", index * 7919)
}

/// Runs something many times and shows the median and the 99th percentile.
fn time(mut run: impl FnMut(usize)) -> String {
    let mut times: Vec<Duration> = (0..QUERIES)
        .map(|index| {
            let begin = Instant::now();
            run(index);
            begin.elapsed()
        })
        .collect();
    times.sort();
    format!("p50 {:?}, p99 {:?}", times[QUERIES / 2], times[QUERIES * 99 / 100])
}

/// The resident memory of this process, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}
