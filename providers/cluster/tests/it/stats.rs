//! Usage statistics.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json as value};
use vk_provider::{
    PodRef,
    ability::{Stats as _, Summary},
    error::Kind,
};
use vk_provider_cluster::{
    names::OwnerId,
    stats::{PodSource, UsageStats},
};
use vk_supervisor::Clock;

use crate::fake_api_server::{FakeApiServer, RecordedRequest, ScriptedAnswer, json, soon, status};

struct FixedPods(Vec<(PodRef, Arc<Pod>)>);

impl PodSource for FixedPods {
    fn pods(&self) -> Vec<(PodRef, Arc<Pod>)> {
        self.0.clone()
    }
}

fn lower(name: &str, uid: &str) -> (PodRef, Arc<Pod>) {
    let pod = value!({
        "metadata": {"namespace": "lower", "name": name, "uid": format!("lower-{uid}")},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "side"}]},
        "status": {
            "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{
                "name": "main", "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
                "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}},
            }],
        },
    });
    (PodRef::new("upper", name, uid), Arc::new(serde_json::from_value(pod).unwrap()))
}

fn usage(api: &FakeApiServer, pods: Vec<(PodRef, Arc<Pod>)>) -> UsageStats {
    let start: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    let owner = OwnerId { origin: "o".to_owned(), node: "vk".to_owned() };
    UsageStats::new(api.client.clone(), owner, Arc::new(FixedPods(pods)), Clock::following_tokio(start))
}

async fn summary(usage: &UsageStats) -> Summary {
    soon(usage.summary()).await.unwrap()
}

fn metrics(name: &str, cpu: &str) -> Value {
    value!({
        "metadata": {"name": name, "namespace": "lower"},
        "timestamp": "2026-01-01T01:00:00Z", "window": "10s",
        "containers": [
            {"name": "main", "usage": {"cpu": cpu, "memory": "10Mi"}},
            {"name": "side", "usage": {"cpu": "1m", "memory": "1Ki"}},
            {"name": "injected-below", "usage": {"cpu": "1", "memory": "1Gi"}},
        ],
    })
}

fn is_kubelet(asked: &RecordedRequest) -> bool {
    asked.path.ends_with("/proxy/metrics/resource")
}

fn forbidden() -> ScriptedAnswer {
    status(403, "Forbidden", "nodes \"n1\" is forbidden")
}

/// The summary of tensile-kube had no UIDs, so that clients could not distinguish pods of the same name.
#[tokio::test]
async fn tensile_kube_the_summary_has_the_uids_of_the_upper_pods() {
    let api = FakeApiServer::start(|asked| {
        if is_kubelet(asked) {
            return forbidden();
        }
        json(&value!({"items": [metrics("web", "500m"), metrics("foreign", "1")]}))
    })
    .await;
    let usage = usage(&api, vec![lower("web", "u-1"), lower("silent", "u-2")]);
    let summary = summary(&usage).await;

    assert_eq!(summary.pods.len(), 1, "{:?}", summary.pods);
    let pod = &summary.pods[0];
    assert_eq!((&*pod.pod_ref.namespace, &*pod.pod_ref.name, &*pod.pod_ref.uid), ("upper", "web", "u-1"));
    assert_eq!(pod.start_time.to_string(), "2026-01-01T00:00:00Z");
    let names: Vec<&str> = pod.containers.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["main", "side"]);
    let main = &pod.containers[0];
    assert_eq!(main.start_time.to_string(), "2026-01-01T00:00:05Z");
    let cpu = main.cpu.as_ref().unwrap();
    assert_eq!((cpu.usage_nano_cores, cpu.usage_core_nano_seconds), (Some(500_000_000), Some(5_000_000_000)));
    assert_eq!(main.memory.as_ref().unwrap().working_set_bytes, Some(10 << 20));

    assert_eq!(summary.node.node_name, "vk");
    let node = summary.node.cpu.as_ref().unwrap();
    assert_eq!(
        (node.usage_nano_cores, node.usage_core_nano_seconds),
        (Some(501_000_000), Some(5_010_000_000))
    );
    assert_eq!(summary.node.memory.as_ref().unwrap().working_set_bytes, Some((10 << 20) + 1024));
    let asked = api.asked();
    assert_eq!(asked[1].path, "/apis/metrics.k8s.io/v1beta1/pods");
    assert!(
        asked[1].query.starts_with("labelSelector=multicluster.virtual-kubelet.io%2Forigin%3Do%2C"),
        "{}",
        asked[1].query
    );
}

#[tokio::test]
async fn kubelets_are_preferred_and_their_counters_reported() {
    let api = FakeApiServer::start(|asked| {
        assert_eq!(asked.path, "/api/v1/nodes/n1/proxy/metrics/resource");
        ScriptedAnswer::Text(
            200,
            "container_cpu_usage_seconds_total{container=\"main\",namespace=\"lower\",pod=\"web\"} 2.5 1767229200000\n\
             container_memory_working_set_bytes{container=\"main\",namespace=\"lower\",pod=\"web\"} 4096 1767229200000\n\
             container_cpu_usage_seconds_total{container=\"x\",namespace=\"kube-system\",pod=\"dns\"} 9 1767229200000\n"
                .to_owned(),
        )
    })
    .await;
    let summary = summary(&usage(&api, vec![lower("web", "u-1"), lower("other", "u-2")])).await;
    assert_eq!(summary.pods.len(), 1);
    let main = &summary.pods[0].containers[0];
    assert_eq!(main.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(2_500_000_000));
    assert_eq!(main.memory.as_ref().unwrap().working_set_bytes, Some(4096));
    assert_eq!(api.asked().len(), 1, "one node is asked once for all of its pods");
}

#[tokio::test]
async fn answers_are_cached_and_denied_kubelets_are_not_queried_again() {
    let api = FakeApiServer::start(|asked| {
        if is_kubelet(asked) {
            return forbidden();
        }
        json(&value!({"items": [metrics("web", "500m")]}))
    })
    .await;
    let usage = usage(&api, vec![lower("web", "u-1")]);
    let first = summary(&usage).await;
    assert_eq!(summary(&usage).await, first);
    assert_eq!(api.asked().len(), 2);
    // Not longer: a paused clock runs ahead of the network.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    summary(&usage).await;
    let asked = api.asked();
    assert_eq!(asked.len(), 3);
    assert!(!is_kubelet(&asked[2]));
}

#[tokio::test]
async fn a_cluster_without_usage_data_is_no_error() {
    for (code, reason) in [(404, "NotFound"), (503, "ServiceUnavailable"), (403, "Forbidden")] {
        let api = FakeApiServer::start(move |asked| {
            if is_kubelet(asked) { forbidden() } else { status(code, reason, "the server could not find it") }
        })
        .await;
        let summary = summary(&usage(&api, vec![lower("web", "u-1")])).await;
        assert!(summary.pods.is_empty() && summary.node.cpu.is_none(), "{code}: {summary:?}");
    }
}

#[tokio::test]
async fn usage_is_read_per_namespace_without_cluster_permissions() {
    let api = FakeApiServer::start(|asked| match asked.path.as_str() {
        "/apis/metrics.k8s.io/v1beta1/namespaces/lower/pods" => {
            json(&value!({"items": [metrics("web", "500m")]}))
        }
        _ => forbidden(),
    })
    .await;
    assert_eq!(summary(&usage(&api, vec![lower("web", "u-1")])).await.pods.len(), 1);
}

#[tokio::test]
async fn the_metrics_api_is_used_if_kubelets_are_down() {
    let api = FakeApiServer::start(|asked| {
        if is_kubelet(asked) {
            return status(503, "ServiceUnavailable", "error trying to reach service");
        }
        json(&value!({"items": [metrics("web", "500m")]}))
    })
    .await;
    assert_eq!(summary(&usage(&api, vec![lower("web", "u-1")])).await.pods.len(), 1);
}

#[tokio::test]
async fn without_pods_no_request_is_sent() {
    let api = FakeApiServer::start(|_| forbidden()).await;
    assert!(summary(&usage(&api, Vec::new())).await.pods.is_empty());
    assert!(api.asked().is_empty());
}

#[tokio::test]
async fn a_throttled_request_is_reported() {
    let api = FakeApiServer::start(|asked| {
        if is_kubelet(asked) { forbidden() } else { status(429, "TooManyRequests", "slow down") }
    })
    .await;
    let error = soon(usage(&api, vec![lower("web", "u-1")]).summary()).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.report().contains("slow down"), "{}", error.report());
}
