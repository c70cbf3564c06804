//! Objects of a pod that are listed and cannot be inspected.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_pod_engine::testing::{Call, Effect, Fault};
use vk_provider::{Provider, error::Kind};

use crate::support::{FOREVER, TestEngine, container, container_status, deleted, exit_code, pod};

fn effects() -> [Effect; 2] {
    [Effect::Fails(Kind::Internal, "the metadata is broken".to_owned()), Effect::Hangs]
}

fn blind(test: &TestEngine, effect: &Effect) {
    for call in [Call::Container, Call::Sandbox] {
        let effect = effect.clone();
        test.runtime.fault(Fault { call: Some(call), after: 0, times: u64::MAX, effect });
    }
}

async fn nothing_is_left(test: &TestEngine) {
    test.eventually("nothing is left", || {
        test.runtime.containers().is_empty() && test.runtime.sandboxes().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_that_cannot_be_inspected_is_stopped_all_the_same() {
    for effect in effects() {
        let test = TestEngine::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = test.create(&wanted).await;
        let before = test.running(&made).await;
        blind(&test, &effect);
        let begun = Instant::now();
        test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
        let status = test.wait_finished(&made).await.expect("the end shows before all is forgotten");
        assert!(begun.elapsed() < Duration::from_mins(1), "{effect:?}: {:?}", begun.elapsed());
        assert_eq!(
            exit_code(container_status(&status, "app")),
            Some(137),
            "{effect:?}: nobody knows how it ended"
        );
        assert_eq!(
            container_status(&status, "app").container_id,
            container_status(&before, "app").container_id
        );
        nothing_is_left(&test).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_pod_that_cannot_be_inspected_is_listed_and_can_be_stopped() {
    for (effect, noted) in effects().into_iter().flat_map(|effect| [(effect.clone(), true), (effect, false)])
    {
        let mut test = TestEngine::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = test.create(&wanted).await;
        let before = test.running(&made).await;
        test.close();
        if !noted {
            std::fs::remove_dir_all(test.folder.path().join("root")).unwrap();
        }
        blind(&test, &effect);
        test.open();
        let begun = Instant::now();
        let listed = test.engine().pods().await.unwrap();
        assert!(begun.elapsed() < Duration::from_mins(1), "{effect:?}: {:?}", begun.elapsed());
        assert_eq!(listed.len(), 1);
        let app = container_status(&listed[0].status, "app");
        assert_eq!(app.container_id, container_status(&before, "app").container_id);
        assert!(app.state.as_ref().is_some_and(|state| state.running.is_some()), "{app:#?}");
        test.engine().delete_pod(&made, None, Duration::from_secs(30)).await.unwrap();
        nothing_is_left(&test).await;
        assert!(begun.elapsed() < Duration::from_mins(3), "{effect:?}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_that_cannot_be_inspected_does_not_hide_the_others() {
    for effect in effects() {
        let mut test = TestEngine::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = test.create(&wanted).await;
        test.running(&made).await;
        test.close();
        blind(&test, &effect);
        test.open();
        // The core requests the status before it lists pods: the pod exists.
        test.create(&wanted).await;
        let begun = Instant::now();
        let listed = test.engine().pods().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert!(begun.elapsed() < Duration::from_mins(1), "{effect:?}: {:?}", begun.elapsed());
        test.runtime.clear_faults();
        tokio::time::sleep(Duration::from_mins(5)).await;
        let status = test.running(&made).await;
        assert_eq!(container_status(&status, "app").restart_count, 0);
        assert_eq!(test.runtime.count(Call::CreateContainer), 1);
    }
}
