//! The end-to-end tests of the Go original (`test/e2e`) for the kubelet API: a node reports a pod with three containers, and no
//! pod of another node.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use vk_testing::{ControlPlane, eventually};

use super::{SOON, Served};

/// A node with a pod of three containers that run. Another pod is bound elsewhere.
async fn served(name: &str) -> (Served<'static>, String) {
    let cluster = ControlPlane::shared().await;
    let served = Served::start(cluster, name, &[]).await;
    let namespace = cluster.namespace(name).await.unwrap().name().to_owned();
    let pods = Api::<Pod>::namespaced(cluster.admin().unwrap(), &namespace);
    for (name, node) in [("three", name), ("foreign", "nowhere")] {
        let containers = ["a", "b", "c"].map(|name| json!({"name": name, "image": "example.com/app:1"}));
        let spec = json!({"nodeName": node, "containers": containers, "automountServiceAccountToken": false});
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    eventually("the pod runs", SOON, || async {
        let pod = pods.get("three").await.map_err(|error| error.to_string())?;
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        if phase == "Running" { Ok(()) } else { Err(phase) }
    })
    .await;
    (served, namespace)
}

async fn read(served: &Served<'_>, path: &str) -> Value {
    let answer = served.answers(&served.admin(), path, 200).await;
    serde_json::from_str(&answer.body).unwrap()
}

/// `TestGetPods`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_pods_of_the_node_are_listed_and_no_others() {
    let (served, namespace) = served("original-pods").await;
    let list = read(&served, "/pods").await;
    let names: Vec<(&Value, &Value)> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| (&pod["metadata"]["namespace"], &pod["metadata"]["name"]))
        .collect();
    assert_eq!(names, [(&json!(namespace), &json!("three"))]);
    assert_eq!(list["items"][0]["spec"]["nodeName"], "original-pods");
}

/// `TestGetStatsSummary`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_summary_names_the_node_and_has_an_entry_for_each_container() {
    let (served, namespace) = served("original-stats").await;
    let summary = read(&served, "/stats/summary").await;
    assert_eq!(summary["node"]["nodeName"], "original-stats");
    let pods = summary["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 1, "{summary}");
    assert_eq!(
        (&pods[0]["podRef"]["namespace"], &pods[0]["podRef"]["name"]),
        (&json!(namespace), &json!("three"))
    );
    let mut names: Vec<&str> =
        pods[0]["containers"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);
}

/// `TestGetMetricsResource`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn the_resource_metrics_have_the_pod_and_a_sample_for_each_container() {
    let (served, namespace) = served("original-metrics").await;
    let text = served.answers(&served.admin(), "/metrics/resource", 200).await.body;
    let samples = |metric: &str| -> Vec<&str> {
        let own = format!("namespace=\"{namespace}\"");
        text.lines()
            .filter(|line| line.starts_with(&format!("{metric}{{")) && line.contains(&own))
            .filter(|line| line.contains("pod=\"three\""))
            .collect()
    };
    for metric in ["pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"] {
        assert_eq!(samples(metric).len(), 1, "{metric} in {text}");
    }
    for metric in ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes"] {
        let found = samples(metric);
        assert_eq!(found.len(), 3, "{metric} in {text}");
        for name in ["a", "b", "c"] {
            assert!(found.iter().any(|line| line.contains(&format!("container=\"{name}\""))), "{found:?}");
        }
    }
    assert!(text.contains("# TYPE container_cpu_usage_seconds_total counter"), "{text}");
}
