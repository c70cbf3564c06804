//! The runtime is unavailable, comes back, or loses its state.

use std::time::Duration;

use serde_json::json;
use vk_pod_engine::testing::Call;
use vk_provider::{Provider, error::Kind};

use crate::support::{FOREVER, TestEngine, container, container_status, is_running, pod};

#[tokio::test(start_paused = true)]
async fn while_the_runtime_is_away_pods_keep_their_status_and_the_node_says_why() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    let before = test.running(&made).await;
    test.engine().ping().await.unwrap();
    test.runtime.down();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let error = test.engine().ping().await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("container runtime is down"), "{error}");
    assert!(error.message().contains("PLEG is not healthy"), "{error}");
    assert_eq!(test.status(&made).await, before);
    assert!(test.engine().pods().await.is_err(), "a list that cannot be complete is none");
    test.runtime.up();
    tokio::time::sleep(Duration::from_secs(10)).await;
    test.engine().ping().await.unwrap();
    let after = test.status(&made).await;
    assert_eq!(container_status(&after, "app").container_id, container_status(&before, "app").container_id);
    assert_eq!(container_status(&after, "app").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_created_while_the_runtime_is_away_starts_when_it_is_back() {
    let test = TestEngine::new();
    test.runtime.down();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let error = test.engine().pod_status(&made).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    test.runtime.up();
    let begun = tokio::time::Instant::now();
    test.running(&made).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_pods_start_anew_in_new_sandboxes() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    let before = test.running(&made).await;
    test.runtime.reboot();
    let after = test
        .until(&made, "it runs again", |status| {
            is_running(status) && container_status(status, "app").restart_count == 1
        })
        .await;
    assert_ne!(container_status(&after, "app").container_id, container_status(&before, "app").container_id);
    assert_eq!(test.count(&made, "SandboxChanged"), 1);
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_removed_by_hand_is_made_anew() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    let before = test.running(&made).await;
    let backend: &dyn vk_pod_engine::ContainerBackend = &test.runtime;
    for id in test.runtime.sandboxes() {
        backend.remove_sandbox(&id).await.unwrap();
    }
    let id = container_status(&before, "app").container_id.clone();
    let after = test
        .until(&made, "it runs again", |status| {
            is_running(status) && container_status(status, "app").container_id != id
        })
        .await;
    // The runtime lost its state: the attempt number comes from the remaining log.
    assert_eq!(container_status(&after, "app").restart_count, 1);
    assert_eq!(test.runtime.sandboxes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_the_network_unless_it_uses_the_hosts() {
    let test = TestEngine::new();
    test.runtime.network(false);
    let error = test.engine().ping().await.unwrap_err();
    assert!(error.message().contains("NetworkReady=false reason:NetworkPluginNotReady"), "{error}");
    let own = test.create(&pod("own", json!({ "containers": [container("app", FOREVER)] }))).await;
    let host = pod("host", json!({ "hostNetwork": true, "containers": [container("app", FOREVER)] }));
    let host = test.create(&host).await;
    test.running(&host).await;
    test.eventually("it is told", || test.count(&own, "NetworkNotReady") > 0).await;
    assert_eq!(test.runtime.running(&own.uid), []);
    test.runtime.network(true);
    test.running(&own).await;
}

#[tokio::test(start_paused = true)]
async fn a_ping_believes_an_answer_that_is_new_and_asks_when_it_is_old_or_in_doubt() {
    let test = TestEngine::new();
    test.engine().ping().await.unwrap();
    let asked = || test.runtime.count(Call::Runtime);
    // The last probe of the engine was this long ago.
    let mut before = asked();
    while asked() == before {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    before = asked();
    tokio::time::sleep(Duration::from_secs(2)).await;
    test.engine().ping().await.unwrap();
    assert_eq!(asked(), before, "it was asked two seconds ago");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    test.engine().ping().await.unwrap();
    assert_eq!(asked(), before + 1, "what it said is old");
    test.runtime.down();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let error = test.engine().ping().await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable, "it has not answered the last list");
    test.runtime.up();
    test.engine().ping().await.unwrap();
}
