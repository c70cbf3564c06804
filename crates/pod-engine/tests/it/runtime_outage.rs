//! The runtime is unavailable, comes back, or loses its state.

use std::time::Duration;

use serde_json::json;
use vk_pod_engine::testing::Call;
use vk_provider::{Provider, error::Kind};

use crate::support::{FOREVER, World, container, is_running, one, pod};

#[tokio::test(start_paused = true)]
async fn while_the_runtime_is_away_pods_keep_their_status_and_the_node_says_why() {
    let world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    let before = world.running(&made).await;
    world.engine().ping().await.unwrap();
    world.runtime.down();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let error = world.engine().ping().await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    assert!(error.message().contains("container runtime is down"), "{error}");
    assert!(error.message().contains("PLEG is not healthy"), "{error}");
    assert_eq!(world.status(&made).await, before);
    assert!(world.engine().pods().await.is_err(), "a list that cannot be complete is none");
    world.runtime.up();
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.engine().ping().await.unwrap();
    let after = world.status(&made).await;
    assert_eq!(one(&after, "app").container_id, one(&before, "app").container_id);
    assert_eq!(one(&after, "app").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_created_while_the_runtime_is_away_starts_when_it_is_back() {
    let world = World::new();
    world.runtime.down();
    let made = world.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let error = world.engine().pod_status(&made).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable);
    world.runtime.up();
    let begun = tokio::time::Instant::now();
    world.running(&made).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_pods_start_anew_in_new_sandboxes() {
    let world = World::new();
    let made = world.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    let before = world.running(&made).await;
    world.runtime.reboot();
    let after = world
        .until(&made, "it runs again", |status| is_running(status) && one(status, "app").restart_count == 1)
        .await;
    assert_ne!(one(&after, "app").container_id, one(&before, "app").container_id);
    assert_eq!(world.count(&made, "SandboxChanged"), 1);
    assert_eq!(world.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_removed_by_hand_is_made_anew() {
    let world = World::new();
    let made = world.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    let before = world.running(&made).await;
    let backend: &dyn vk_pod_engine::ContainerBackend = &world.runtime;
    for id in world.runtime.sandboxes() {
        backend.remove_sandbox(&id).await.unwrap();
    }
    let id = one(&before, "app").container_id.clone();
    let after = world
        .until(&made, "it runs again", |status| is_running(status) && one(status, "app").container_id != id)
        .await;
    // The runtime remembers nothing: the number comes from the log that is left.
    assert_eq!(one(&after, "app").restart_count, 1);
    assert_eq!(world.runtime.sandboxes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_the_network_unless_it_uses_the_hosts() {
    let world = World::new();
    world.runtime.network(false);
    let error = world.engine().ping().await.unwrap_err();
    assert!(error.message().contains("NetworkReady=false reason:NetworkPluginNotReady"), "{error}");
    let own = world.create(&pod("own", json!({ "containers": [container("app", FOREVER)] }))).await;
    let host = pod("host", json!({ "hostNetwork": true, "containers": [container("app", FOREVER)] }));
    let host = world.create(&host).await;
    world.running(&host).await;
    world.eventually("it is told", || world.count(&own, "NetworkNotReady") > 0).await;
    assert_eq!(world.runtime.running(&own.uid), []);
    world.runtime.network(true);
    world.running(&own).await;
}

#[tokio::test(start_paused = true)]
async fn a_ping_believes_an_answer_that_is_new_and_asks_when_it_is_old_or_in_doubt() {
    let world = World::new();
    world.engine().ping().await.unwrap();
    let asked = || world.runtime.count(Call::Runtime);
    // The last of the engine's own looks is this long ago.
    let mut before = asked();
    while asked() == before {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    before = asked();
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.engine().ping().await.unwrap();
    assert_eq!(asked(), before, "it was asked two seconds ago");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    world.engine().ping().await.unwrap();
    assert_eq!(asked(), before + 1, "what it said is old");
    world.runtime.down();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let error = world.engine().ping().await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unavailable, "it has not answered the last list");
    world.runtime.up();
    world.engine().ping().await.unwrap();
}
