//! The end-to-end tests of the Go original (`test/e2e`) that need neither the kubelet API nor references of pods. Where the
//! original reads the provider's `/runningpods/`, these read from the backend.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::workload_test::{BRISK, WorkloadTest};

/// `TestPodLifecycleGracefulDelete`: the pod has its grace, and leaves when the backend has stopped it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_deleted_gracefully_stops_and_leaves_before_its_grace_ends() {
    let cluster = ControlPlane::shared().await;
    let test = WorkloadTest::open(cluster, "graceful", 1, BRISK).await;
    test.apply(&test.pod("web", &[("stop-delay", "1500ms")])).await;
    test.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=30s"]).await;
    let pod = test.get("pod/web").await;
    assert!(pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with("10.88.")), "{pod}");
    test.agreed(1).await;

    let begun = Instant::now();
    test.kubectl(&["delete", "pod/web", "--wait=false"]).await;
    let stopping = test.get("pod/web").await;
    assert_eq!(stopping["metadata"]["deletionGracePeriodSeconds"], 30);
    test.agreed(0).await;
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(test.log.codes("web"), [0].into(), "it was killed");
    assert_eq!(test.close().await, 1);
}

/// `TestPodLifecycleForceDelete`: gone from the API server at once, and from the backend as soon as it hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_pod_that_is_deleted_by_force_is_killed_in_the_backend() {
    let cluster = ControlPlane::shared().await;
    let test = WorkloadTest::open(cluster, "force", 1, BRISK).await;
    test.apply(&test.pod("web", &[("stop-delay", "1h")])).await;
    test.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=30s"]).await;
    test.agreed(1).await;
    test.kubectl(&["delete", "pod/web", "--force", "--grace-period=0"]).await;
    assert!(!test.try_kubectl(&["get", "pod/web"]).await.success());
    test.agreed(0).await;
    assert_eq!(test.log.codes("web"), [137].into());
    assert_eq!(test.close().await, 1);
}

/// `TestNodeCreateAfterDelete`, and what runs on the node is not touched by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_node_that_is_deleted_comes_back_and_its_pods_run_on() {
    let cluster = ControlPlane::shared().await;
    let test = WorkloadTest::open(cluster, "comeback", 1, BRISK).await;
    for name in ["one", "two"] {
        test.apply(&test.pod(name, &[])).await;
    }
    test.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=30s"]).await;
    test.agreed(2).await;
    let before = test.running().await;
    let node = format!("node/{}", test.nodes[0]);
    let old = test.get(&node).await["metadata"]["uid"].clone();
    test.kubectl(&["delete", &node]).await;
    test.there(0).await;
    let new = test.get(&node).await;
    assert_ne!(new["metadata"]["uid"], old);
    // It takes pods again, and has kept those it had.
    test.apply(&test.pod("three", &[])).await;
    test.kubectl(&["wait", "--for=condition=Ready", "pod/three", "--timeout=30s"]).await;
    test.agreed(3).await;
    let after = test.running().await;
    assert!(before.iter().all(|(uid, instance)| after.get(uid) == Some(instance)), "{before:?} {after:?}");
    assert_eq!(new["metadata"]["labels"]["test"], json!(test.name));
    test.kubectl(&["delete", "pods", "--all", "--wait=false"]).await;
    assert_eq!(test.close().await, 3);
}
