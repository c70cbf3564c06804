//! Pods with an image that takes long to pull.

use std::time::Duration;

use serde_json::json;
use vk_pod_engine::testing::Pull;
use vk_provider::Provider as _;

use crate::support::{FOREVER, TestEngine, container, container_status, deleted, is_running, pod, waiting};

/// Longer than every test waits.
const HOURS: Duration = Duration::from_hours(24);

/// A container whose image takes long to pull.
fn slow(name: &str) -> serde_json::Value {
    let mut slow = container(name, FOREVER);
    slow["image"] = json!("slow:1");
    slow
}

/// Point 30.
#[tokio::test(start_paused = true)]
async fn readiness_is_published_while_an_image_of_the_pod_is_pulled() {
    let test = TestEngine::new();
    test.runtime.pulls("slow:1", Pull::After(HOURS));
    let mut app = container("app", FOREVER);
    app["readinessProbe"] =
        json!({ "exec": { "command": ["test", "-f", "/ready"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let made = test.create(&pod("a", json!({ "containers": [app, slow("slow")] }))).await;
    let status = test
        .until(&made, "the first container runs", |status| {
            container_status(status, "app").state.as_ref().is_some_and(|state| state.running.is_some())
        })
        .await;
    assert!(!container_status(&status, "app").ready);
    test.runtime.touch("app", "/ready");
    let status = test.until(&made, "it is ready", |status| container_status(status, "app").ready).await;
    assert_eq!(waiting(container_status(&status, "slow")), "ContainerCreating");
    test.runtime.untouch("app", "/ready");
    test.until(&made, "it is not ready any more", |status| !container_status(status, "app").ready).await;
    assert_eq!(test.count(&made, "Pulling"), 2, "one pull of each image");
}

/// Point 30.
#[tokio::test(start_paused = true)]
async fn a_failed_liveness_probe_restarts_a_container_while_an_image_of_the_pod_is_pulled() {
    let test = TestEngine::new();
    test.runtime.pulls("slow:1", Pull::After(HOURS));
    let mut app = container("app", FOREVER);
    app["livenessProbe"] =
        json!({ "exec": { "command": ["test", "-f", "/alive"] }, "periodSeconds": 1, "failureThreshold": 2 });
    test.runtime.touch("app", "/alive");
    let made = test.create(&pod("a", json!({ "containers": [app, slow("slow")] }))).await;
    test.until(&made, "the first container runs", |status| {
        container_status(status, "app").state.as_ref().is_some_and(|state| state.running.is_some())
    })
    .await;
    test.runtime.untouch("app", "/alive");
    test.until(&made, "it is restarted", |status| container_status(status, "app").restart_count > 0).await;
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn containers_start_in_their_order_when_their_images_are_there() {
    let test = TestEngine::new();
    test.runtime.pulls("slow:1", Pull::After(Duration::from_secs(30)));
    let containers = [container("first", FOREVER), slow("second"), container("third", FOREVER)];
    let made = test.create(&pod("a", json!({ "containers": containers }))).await;
    test.until(&made, "all run", is_running).await;
    let events = test.events(&made);
    let reasons: Vec<&str> = events
        .iter()
        .map(|(reason, _)| reason.as_str())
        .filter(|reason| ["Pulling", "Pulled", "Created", "Started"].contains(reason))
        .collect();
    let one = ["Pulling", "Pulled", "Created", "Started"];
    assert_eq!(reasons, [&one[..], &one[..], &one[1..]].concat(), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_does_not_wait_for_its_image() {
    let test = TestEngine::new();
    test.runtime.pulls("slow:1", Pull::After(HOURS));
    let pod = pod("a", json!({ "containers": [slow("slow")] }));
    let made = test.create(&pod).await;
    test.eventually("the pull has begun", || test.count(&made, "Pulling") > 0).await;
    test.engine().delete_pod(&made, Some(deleted(&pod)), Duration::from_secs(1)).await.unwrap();
    test.wait_finished(&made).await;
}
