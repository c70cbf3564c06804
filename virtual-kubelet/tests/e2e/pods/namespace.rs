//! A namespace that is deleted with all that runs in it.

use serde_json::json;
use tokio::time::Instant;
use vk_testing::ControlPlane;

use super::site::{BRISK, Site};

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_deleted_with_all_its_pods_and_nothing_of_them_is_left() {
    let cluster = ControlPlane::shared_with_controllers().await;
    let site = Site::open(cluster, "namespace", 2, BRISK).await;
    site.apply(&site.deployment("web", 30)).await;
    // Pods of nobody, of which some never get ready and one has ended.
    for (name, script) in [
        ("waits", [("start-delay", "1h")]),
        ("starts", [("ready-delay", "1h")]),
        ("slow", [("stop-delay", "3s")]),
        ("over", [("run-for", "100ms")]),
    ] {
        let mut pod = site.pod(name, &script);
        pod["spec"]["restartPolicy"] = "Never".into();
        pod["spec"]["terminationGracePeriodSeconds"] = json!(10);
        site.create(&pod).await;
    }
    site.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await;
    site.see("pod/over", "it has ended", |found| found["status"]["phase"] == "Succeeded").await;
    site.agreed(34).await;
    let begun = Instant::now();
    site.kubectl(&["delete", "namespace", &site.name, "--timeout=120s"]).await;
    let took = begun.elapsed();
    // What stopped had the time to.
    assert_eq!(site.chronicle.codes("web-"), [0].into());
    assert_eq!(site.chronicle.codes("slow"), [0].into());
    let pods = site.close().await;
    println!("namespace with 34 pods deleted in {took:.1?}; {pods} pods ever");
}
