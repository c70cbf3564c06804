//! One of each kind of workload that ends and that does not, with the real controllers. The rest is in `make e2e-pods`.

use serde_json::json;
use vk_testing::ControlPlane;

use super::site::{BRISK, CURT, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_deployment_is_scheduled_rolled_out_and_deleted() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "rollout", 2, CURT).await;
    let mut deployment = site.deployment("web", 6);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 2}});
    site.apply(&deployment).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    site.agreed(6).await;
    let (before, then) = (site.running().await, site.chronicle.now());
    site.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    site.agreed(6).await;
    assert!(site.running().await.keys().all(|uid| !before.contains_key(uid)), "old pods are left");
    let fewest = site.chronicle.fewest_ready("web-", then);
    assert!(fewest >= 5, "only {fewest} were ready");
    site.kubectl(&["delete", "deployment/web", "--wait=false"]).await;
    assert_eq!(site.close().await, 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_job_completes_and_one_that_fails_gives_up() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "work", 1, BRISK).await;
    for (name, code) in [("good", "0"), ("bad", "1")] {
        let mut template = site.template(name, &[("run-for", "200ms"), ("exit-code", code)]);
        template["spec"]["restartPolicy"] = "Never".into();
        // One that prepares, and one that goes on beside the others and keeps nobody from ending.
        template["spec"]["initContainers"] = json!([
            {"name": "first", "image": "example.com/init:1"},
            {"name": "beside", "image": "example.com/sidecar:1", "restartPolicy": "Always"},
        ]);
        site.apply(&json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"completions": 4, "parallelism": 2, "backoffLimit": 0, "template": template},
        }))
        .await;
    }
    site.kubectl(&["wait", "--for=condition=Complete", "job/good", "--timeout=60s"]).await;
    site.kubectl(&["wait", "--for=condition=Failed", "job/bad", "--timeout=60s"]).await;
    assert_eq!(site.get("job/good").await["status"]["succeeded"], 4);
    assert!(site.chronicle.most_alive("good-", 0) <= 2);
    site.kubectl(&["delete", "job/good", "job/bad", "--wait=false"]).await;
    site.close().await;
}
