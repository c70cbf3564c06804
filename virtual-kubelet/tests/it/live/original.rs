//! The end-to-end cases of the Go original (`test/e2e`) that need neither the kubelet API nor what pods refer to. What the
//! original reads from the provider's `/runningpods/`, these read from the backend itself.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::site::{BRISK, Site};

/// `TestPodLifecycleGracefulDelete`: the pod has its grace, and leaves when the backend has stopped it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_deleted_gracefully_stops_and_leaves_before_its_grace_ends() {
    let cluster = ControlPlane::shared().await;
    let site = Site::open(cluster, "graceful", 1, BRISK).await;
    site.apply(&site.pod("web", &[("stop-delay", "1500ms")])).await;
    site.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=30s"]).await;
    let pod = site.get("pod/web").await;
    assert!(pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with("10.88.")), "{pod}");
    site.agreed(1).await;

    let begun = Instant::now();
    site.kubectl(&["delete", "pod/web", "--wait=false"]).await;
    let stopping = site.get("pod/web").await;
    assert_eq!(stopping["metadata"]["deletionGracePeriodSeconds"], 30);
    site.agreed(0).await;
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(site.chronicle.codes("web"), [0].into(), "it was killed");
    assert_eq!(site.close().await, 1);
}

/// `TestPodLifecycleForceDelete`: gone from the API server at once, and from the backend as soon as it hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_deleted_by_force_is_killed_in_the_backend() {
    let cluster = ControlPlane::shared().await;
    let site = Site::open(cluster, "force", 1, BRISK).await;
    site.apply(&site.pod("web", &[("stop-delay", "1h")])).await;
    site.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=30s"]).await;
    site.agreed(1).await;
    site.kubectl(&["delete", "pod/web", "--force", "--grace-period=0"]).await;
    assert!(!site.try_kubectl(&["get", "pod/web"]).await.success());
    site.agreed(0).await;
    assert_eq!(site.chronicle.codes("web"), [137].into());
    assert_eq!(site.close().await, 1);
}

/// `TestNodeCreateAfterDelete`, and what runs on the node is not touched by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_node_that_is_deleted_comes_back_and_its_pods_run_on() {
    let cluster = ControlPlane::shared().await;
    let site = Site::open(cluster, "comeback", 1, BRISK).await;
    for name in ["one", "two"] {
        site.apply(&site.pod(name, &[])).await;
    }
    site.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=30s"]).await;
    site.agreed(2).await;
    let before = site.running().await;
    let node = format!("node/{}", site.nodes[0]);
    let old = site.get(&node).await["metadata"]["uid"].clone();
    site.kubectl(&["delete", &node]).await;
    site.there(0).await;
    let new = site.get(&node).await;
    assert_ne!(new["metadata"]["uid"], old);
    // It takes pods again, and has kept those it had.
    site.apply(&site.pod("three", &[])).await;
    site.kubectl(&["wait", "--for=condition=Ready", "pod/three", "--timeout=30s"]).await;
    site.agreed(3).await;
    let after = site.running().await;
    assert!(before.iter().all(|(uid, instance)| after.get(uid) == Some(instance)), "{before:?} {after:?}");
    assert_eq!(new["metadata"]["labels"]["site"], json!(site.name));
    site.kubectl(&["delete", "pods", "--all", "--wait=false"]).await;
    assert_eq!(site.close().await, 3);
}
