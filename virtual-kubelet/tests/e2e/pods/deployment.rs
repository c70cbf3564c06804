//! Deployments and ReplicaSets.

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::workload_test::{BRISK, CURT, WorkloadTest};

const REPLICAS: usize = 12;
const MOST_UNAVAILABLE: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_rolls_out_and_back_and_enough_of_it_is_ready_all_the_time() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "deployment", 2, CURT).await;
    let mut deployment = test.deployment("web", REPLICAS);
    deployment["spec"]["strategy"] =
        json!({"rollingUpdate": {"maxUnavailable": MOST_UNAVAILABLE, "maxSurge": 3}});
    test.apply(&deployment).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(REPLICAS).await;
    let first = test.running().await;

    let ready = test.log.now();
    test.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(REPLICAS).await;
    assert!(test.running().await.keys().all(|uid| !first.contains_key(uid)), "old pods are left");
    images(&test, "example.com/app:2").await;

    test.kubectl(&["rollout", "undo", "deployment/web", "--to-revision=1"]).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(REPLICAS).await;
    images(&test, "example.com/app:1").await;
    let deployment = test.get("deployment/web").await;
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    let fewest = test.log.fewest_ready("web-", ready);
    assert!(fewest >= REPLICAS - MOST_UNAVAILABLE, "only {fewest} of {REPLICAS} were ready");

    // A version that cannot be run gets stuck, and the rest of the old one goes on.
    test.kubectl(&[
        "patch",
        "deployment/web",
        "--patch",
        r#"{"spec":{"template":{"metadata":{"annotations":{"mock.virtual-kubelet.io/ready-delay":"1h"}}}}}"#,
    ])
    .await;
    test.see("deployment/web", "all that may be replaced is", |found| {
        found["status"]["updatedReplicas"] == 5
    })
    .await;
    test.kubectl(&["rollout", "undo", "deployment/web"]).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.agreed(REPLICAS).await;
    let fewest = test.log.fewest_ready("web-", ready);
    assert!(fewest >= REPLICAS - MOST_UNAVAILABLE, "only {fewest} of {REPLICAS} were ready");

    test.kubectl(&["delete", "deployment/web", "--wait=false"]).await;
    let pods = test.close().await;
    println!(
        "Deployment of {REPLICAS}: out, back, stuck and back in {:.1?}; {pods} pods, at least {fewest} ready",
        begun.elapsed()
    );
}

/// All pods have this image, also in the backend's words.
async fn images(test: &WorkloadTest<'_>, image: &str) {
    for (name, pod) in test.list().await {
        let statuses = pod.status.unwrap().container_statuses.unwrap();
        assert!(statuses.iter().all(|status| status.image == image), "{name}: {statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_set_grows_from_none_to_two_hundred_and_shrinks_to_none() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "replicaset", 1, BRISK).await;
    test.apply(&json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "many"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "many"}},
            "template": test.template("many", &[]),
        },
    }))
    .await;
    let begun = Instant::now();
    test.kubectl(&["scale", "replicaset/many", "--replicas=200"]).await;
    test.see("replicaset/many", "200 are available", |found| found["status"]["availableReplicas"] == 200)
        .await;
    let up = begun.elapsed();
    test.agreed(200).await;
    assert_eq!(test.created_once(), 200);

    let begun = Instant::now();
    test.kubectl(&["scale", "replicaset/many", "--replicas=0"]).await;
    test.agreed(0).await;
    let down = begun.elapsed();
    test.kubectl(&["delete", "replicaset/many"]).await;
    assert_eq!(test.close().await, 200);
    println!("ReplicaSet: 0 to 200 in {up:.1?}, 200 to 0 in {down:.1?}");
}
