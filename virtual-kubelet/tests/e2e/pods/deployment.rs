//! Deployments and ReplicaSets.

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::site::{BRISK, CURT, Site};

const REPLICAS: usize = 12;
const MOST_UNAVAILABLE: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_rolls_out_and_back_and_enough_of_it_is_ready_all_the_time() {
    let begun = Instant::now();
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "deployment", 2, CURT).await;
    let mut deployment = site.deployment("web", REPLICAS);
    deployment["spec"]["strategy"] =
        json!({"rollingUpdate": {"maxUnavailable": MOST_UNAVAILABLE, "maxSurge": 3}});
    site.apply(&deployment).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(REPLICAS).await;
    let first = site.running().await;

    let ready = site.chronicle.now();
    site.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(REPLICAS).await;
    assert!(site.running().await.keys().all(|uid| !first.contains_key(uid)), "old pods are left");
    images(&site, "example.com/app:2").await;

    site.kubectl(&["rollout", "undo", "deployment/web", "--to-revision=1"]).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(REPLICAS).await;
    images(&site, "example.com/app:1").await;
    let deployment = site.get("deployment/web").await;
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    let fewest = site.chronicle.fewest_ready("web-", ready);
    assert!(fewest >= REPLICAS - MOST_UNAVAILABLE, "only {fewest} of {REPLICAS} were ready");

    // A version that cannot be run gets stuck, and the rest of the old one goes on.
    site.kubectl(&[
        "patch",
        "deployment/web",
        "--patch",
        r#"{"spec":{"template":{"metadata":{"annotations":{"mock.virtual-kubelet.io/ready-delay":"1h"}}}}}"#,
    ])
    .await;
    site.see("deployment/web", "all that may be replaced is", |found| {
        found["status"]["updatedReplicas"] == 5
    })
    .await;
    site.kubectl(&["rollout", "undo", "deployment/web"]).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.agreed(REPLICAS).await;
    let fewest = site.chronicle.fewest_ready("web-", ready);
    assert!(fewest >= REPLICAS - MOST_UNAVAILABLE, "only {fewest} of {REPLICAS} were ready");

    site.kubectl(&["delete", "deployment/web", "--wait=false"]).await;
    let pods = site.close().await;
    println!(
        "Deployment of {REPLICAS}: out, back, stuck and back in {:.1?}; {pods} pods, at least {fewest} ready",
        begun.elapsed()
    );
}

/// All pods have this image, also in the backend's words.
async fn images(site: &Site<'_>, image: &str) {
    for (name, pod) in site.list().await {
        let statuses = pod.status.unwrap().container_statuses.unwrap();
        assert!(statuses.iter().all(|status| status.image == image), "{name}: {statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_set_grows_from_none_to_two_hundred_and_shrinks_to_none() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "replicaset", 1, BRISK).await;
    site.apply(&json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "many"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "many"}},
            "template": site.template("many", &[]),
        },
    }))
    .await;
    let begun = Instant::now();
    site.kubectl(&["scale", "replicaset/many", "--replicas=200"]).await;
    site.see("replicaset/many", "200 are available", |found| found["status"]["availableReplicas"] == 200)
        .await;
    let up = begun.elapsed();
    site.agreed(200).await;
    assert_eq!(site.created_once(), 200);

    let begun = Instant::now();
    site.kubectl(&["scale", "replicaset/many", "--replicas=0"]).await;
    site.agreed(0).await;
    let down = begun.elapsed();
    site.kubectl(&["delete", "replicaset/many"]).await;
    assert_eq!(site.close().await, 200);
    println!("ReplicaSet: 0 to 200 in {up:.1?}, 200 to 0 in {down:.1?}");
}
