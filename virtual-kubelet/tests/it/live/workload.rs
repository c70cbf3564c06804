//! One workload of each kind with the real controllers. `make e2e-pods` has the rest.

use serde_json::json;
use vk_testing::ControlPlane;

use super::workload_test::{BRISK, CURT, WorkloadTest};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_deployment_is_scheduled_rolled_out_and_deleted() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "rollout", 2, CURT).await;
    let mut deployment = test.deployment("web", 6);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 2}});
    test.apply(&deployment).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    test.agreed(6).await;
    let (before, then) = (test.running().await, test.log.now());
    test.kubectl(&["set", "image", "deployment/web", "main=example.com/app:2"]).await;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]).await;
    test.agreed(6).await;
    assert!(test.running().await.keys().all(|uid| !before.contains_key(uid)), "old pods are left");
    let fewest = test.log.fewest_ready("web-", then);
    assert!(fewest >= 5, "only {fewest} were ready");
    test.kubectl(&["delete", "deployment/web", "--wait=false"]).await;
    assert_eq!(test.close().await, 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the control plane: make test"]
async fn a_job_completes_and_one_that_fails_gives_up() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "work", 1, BRISK).await;
    for (name, code) in [("good", "0"), ("bad", "1")] {
        let mut template = test.template(name, &[("run-for", "200ms"), ("exit-code", code)]);
        template["spec"]["restartPolicy"] = "Never".into();
        // One that prepares, and one that goes on beside the others and keeps nobody from ending.
        template["spec"]["initContainers"] = json!([
            {"name": "first", "image": "example.com/init:1"},
            {"name": "beside", "image": "example.com/sidecar:1", "restartPolicy": "Always"},
        ]);
        test.apply(&json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"completions": 4, "parallelism": 2, "backoffLimit": 0, "template": template},
        }))
        .await;
    }
    test.kubectl(&["wait", "--for=condition=Complete", "job/good", "--timeout=60s"]).await;
    test.kubectl(&["wait", "--for=condition=Failed", "job/bad", "--timeout=60s"]).await;
    assert_eq!(test.get("job/good").await["status"]["succeeded"], 4);
    assert!(test.log.most_alive("good-", 0) <= 2);
    test.kubectl(&["delete", "job/good", "job/bad", "--wait=false"]).await;
    test.close().await;
}
