//! Deletion of a namespace with running pods.

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::workload_test::{BRISK, WorkloadTest};

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_deleted_with_all_its_pods_and_nothing_of_them_is_left() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let test = WorkloadTest::open(cluster, "namespace", 2, BRISK).await;
    test.apply(&test.deployment("web", 30)).await;
    // Pods of nobody, of which some never get ready and one has ended.
    for (name, script) in [
        ("waits", [("start-delay", "1h")]),
        ("starts", [("ready-delay", "1h")]),
        ("slow", [("stop-delay", "3s")]),
        ("over", [("run-for", "100ms")]),
    ] {
        let mut pod = test.pod(name, &script);
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["terminationGracePeriodSeconds"] = json!(10);
        test.create(&pod).await;
    }
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    test.see("pod/over", "it has ended", |found| found["status"]["phase"] == "Succeeded").await;
    test.agreed(34).await;
    let begun = Instant::now();
    test.kubectl(&["delete", "namespace", &test.name, "--timeout=120s"]).await;
    let took = begun.elapsed();
    // What stopped had the time to.
    assert_eq!(test.log.codes("web-"), [0].into());
    assert_eq!(test.log.codes("slow"), [0].into());
    let pods = test.close().await;
    println!("namespace with 34 pods deleted in {took:.1?}; {pods} pods ever");
}
