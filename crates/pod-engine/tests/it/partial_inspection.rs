//! Objects of a pod that are listed and cannot be inspected.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_pod_engine::testing::{Call, Effect, Fault};
use vk_provider::{Provider, error::Kind};

use crate::support::{FOREVER, World, container, deleted, exit_code, one, pod};

fn effects() -> [Effect; 2] {
    [Effect::Fails(Kind::Internal, "the metadata is broken".to_owned()), Effect::Hangs]
}

fn blind(world: &World, effect: &Effect) {
    for call in [Call::Container, Call::Sandbox] {
        let effect = effect.clone();
        world.runtime.fault(Fault { call: Some(call), after: 0, times: u64::MAX, effect });
    }
}

async fn nothing_is_left(world: &World) {
    world
        .eventually("nothing is left", || {
            world.runtime.containers().is_empty() && world.runtime.sandboxes().is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_that_cannot_be_inspected_is_stopped_all_the_same() {
    for effect in effects() {
        let world = World::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = world.create(&wanted).await;
        let before = world.running(&made).await;
        blind(&world, &effect);
        let begun = Instant::now();
        world.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
        let status = world.over(&made).await.expect("the end shows before all is forgotten");
        assert!(begun.elapsed() < Duration::from_mins(1), "{effect:?}: {:?}", begun.elapsed());
        assert_eq!(exit_code(one(&status, "app")), Some(137), "{effect:?}: nobody knows how it ended");
        assert_eq!(one(&status, "app").container_id, one(&before, "app").container_id);
        nothing_is_left(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_pod_that_cannot_be_inspected_is_listed_and_can_be_stopped() {
    for (effect, noted) in effects().into_iter().flat_map(|effect| [(effect.clone(), true), (effect, false)])
    {
        let mut world = World::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = world.create(&wanted).await;
        let before = world.running(&made).await;
        world.close();
        if !noted {
            std::fs::remove_dir_all(world.folder.path().join("root")).unwrap();
        }
        blind(&world, &effect);
        world.open();
        let begun = Instant::now();
        let listed = world.engine().pods().await.unwrap();
        assert!(begun.elapsed() < Duration::from_mins(1), "{effect:?}: {:?}", begun.elapsed());
        assert_eq!(listed.len(), 1);
        let app = one(&listed[0].status, "app");
        assert_eq!(app.container_id, one(&before, "app").container_id);
        assert!(app.state.as_ref().is_some_and(|state| state.running.is_some()), "{app:#?}");
        world.engine().delete_pod(&made, None, Duration::from_secs(30)).await.unwrap();
        nothing_is_left(&world).await;
        assert!(begun.elapsed() < Duration::from_mins(3), "{effect:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_that_cannot_be_inspected_does_not_hide_the_others() {
    for effect in effects() {
        let mut world = World::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = world.create(&wanted).await;
        world.running(&made).await;
        world.close();
        blind(&world, &effect);
        world.open();
        // The core asks for it before it lists: nothing is decided about it, but it is there.
        world.create(&wanted).await;
        let begun = Instant::now();
        let listed = world.engine().pods().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert!(begun.elapsed() < Duration::from_mins(1), "{effect:?}: {:?}", begun.elapsed());
        world.runtime.clear_faults();
        tokio::time::sleep(Duration::from_mins(5)).await;
        let status = world.running(&made).await;
        assert_eq!(one(&status, "app").restart_count, 0);
        assert_eq!(world.runtime.count(Call::CreateContainer), 1);
    }
}
