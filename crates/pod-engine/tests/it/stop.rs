//! Deletion of pods.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_pod_engine::testing::{Call, Pull};
use vk_provider::{Provider, error::Kind};

use crate::support::{
    FOREVER, STUBBORN, TestEngine, container, container_status, deleted, exit_code, pod, reference, waiting,
};

/// How long an end may take beside its grace.
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_ends_and_later_nothing_of_it_is_left() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    let status = test.wait_finished(&made).await.expect("the end shows before all is forgotten");
    assert_eq!(exit_code(container_status(&status, "app")), Some(0));
    assert_eq!(test.count(&made, "Killing"), 1);
    assert!(test.events(&made).contains(&("Killing".into(), "Stopping container app".into())));
    test.eventually("nothing is left", || {
        test.runtime.containers().is_empty() && test.runtime.sandboxes().is_empty()
    })
    .await;
    let gone = async || test.engine().pod_status(&made).await.err().map(|error| error.kind().clone());
    while gone().await != Some(Kind::NotFound) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for folder in ["root/pods", "logs"] {
        let left = std::fs::read_dir(test.folder.path().join(folder)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{folder}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_while_nothing_of_it_runs_has_its_last_word_too() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", "exit 1")] }));
    let made = test.create(&wanted).await;
    let looping = |status: &_| waiting(container_status(status, "app")) == "CrashLoopBackOff";
    test.until(&made, "a crash loop", looping).await;
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    // Whoever hears first that its containers have ended lets it go: then all must have been said.
    let status = test.wait_finished(&made).await.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_ne!(test.runtime.count(Call::StopSandbox), 0, "the sandbox was stopped before");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ignores_the_request_is_killed_when_its_grace_is_over() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", STUBBORN)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "a delete returns before the end");
    let status = test.wait_finished(&made).await.unwrap();
    assert_eq!(exit_code(container_status(&status, "app")), Some(137));
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(29) && took < Duration::from_secs(30) + SLACK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shortened_grace_hastens_the_end() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", STUBBORN)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_hours(1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(3)).await.unwrap();
    test.wait_finished(&made).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(12) && took < Duration::from_secs(13) + SLACK, "{took:?}");
    assert_eq!(test.count(&made, "Killing"), 1, "told once");
}

#[tokio::test(start_paused = true)]
async fn a_longer_grace_does_not_prolong_the_end() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", STUBBORN)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(5)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_hours(1)).await.unwrap();
    test.wait_finished(&made).await;
    assert!(begun.elapsed() < Duration::from_secs(6) + SLACK, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_runs_first_and_its_time_counts() {
    let test = TestEngine::new();
    let mut app = container("app", STUBBORN);
    app["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sh", "-c", "sleep 4"] } } });
    let wanted = pod("a", json!({ "containers": [app] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(10)).await.unwrap();
    test.eventually("the hook runs", || test.runtime.count(Call::Run) == 1).await;
    assert_eq!(test.runtime.count(Call::StopContainer), 0, "nothing is stopped before the hook has ended");
    test.wait_finished(&made).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(9) && took < Duration::from_secs(10) + SLACK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_takes_too_long_leaves_two_seconds() {
    let test = TestEngine::new();
    let mut app = container("app", STUBBORN);
    app["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sh", "-c", "sleep 1000"] } } });
    let wanted = pod("a", json!({ "containers": [app] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(5)).await.unwrap();
    test.wait_finished(&made).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(7) && took < Duration::from_secs(7) + SLACK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_after_the_others_in_reverse_order() {
    let test = TestEngine::new();
    let sidecar = |name: &str| {
        let mut sidecar = container(name, FOREVER);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let wanted = pod(
        "a",
        json!({
            "initContainers": [sidecar("first"), sidecar("second")],
            "containers": [container("app", FOREVER), container("other", FOREVER)],
        }),
    );
    test.runtime.set(|quirks| quirks.stop_takes = Duration::from_secs(2));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    let status = test.wait_finished(&made).await.unwrap();
    let finished = |name: &str| {
        let state = container_status(&status, name).state.clone().unwrap();
        state.terminated.unwrap().finished_at.unwrap().0
    };
    assert_eq!(finished("app"), finished("other"), "regular containers end beside each other");
    assert!(finished("app") < finished("second") && finished("second") < finished("first"), "{status:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_leftover_is_stopped_by_its_marks_alone() {
    let mut test = TestEngine::new();
    let mut app = container("app", STUBBORN);
    app["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sh", "-c", "sleep 2"] } } });
    let wanted = pod("a", json!({ "containers": [app], "terminationGracePeriodSeconds": 20 }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    test.close();
    std::fs::remove_dir_all(test.folder.path().join("root")).unwrap();
    test.open();
    let listed = test.engine().pods().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].pod, made);
    test.engine().delete_pod(&made, None, Duration::from_secs(20)).await.unwrap();
    test.eventually("the hook that the runtime remembers runs", || test.runtime.count(Call::Run) == 1).await;
    test.wait_finished(&made).await;
    test.eventually("nothing is left", || {
        test.runtime.containers().is_empty() && test.runtime.sandboxes().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_still_pulls_is_deleted_at_once() {
    let test = TestEngine::new();
    for name in ["busybox:1.37", "docker.io/library/busybox:1.37"] {
        test.runtime.pulls(name, Pull::After(Duration::from_mins(20)));
    }
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.eventually("it pulls", || test.runtime.count(Call::Pull) > 0).await;
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    test.wait_finished(&made).await;
    assert!(begun.elapsed() < SLACK, "{:?}", begun.elapsed());
    assert_eq!(test.runtime.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_comes_after_the_pod_was_deleted_is_removed_too() {
    let test = TestEngine::new();
    test.runtime.late_sandbox(Duration::from_secs(8));
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.eventually("the sandbox is asked for", || test.runtime.count(Call::RunSandbox) == 1).await;
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(30)).await.unwrap();
    test.wait_finished(&made).await;
    assert_eq!(test.runtime.sandboxes().len(), 0);
    test.eventually("it comes all the same", || test.runtime.sandboxes().len() == 1).await;
    test.eventually("and is stopped", || test.runtime.count(Call::StopSandbox) > 0).await;
    test.eventually("and removed", || test.runtime.sandboxes().is_empty()).await;
    assert_eq!(test.runtime.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_there_is_not_found() {
    let test = TestEngine::new();
    let stranger = reference(&pod("stranger", json!({ "containers": [container("app", FOREVER)] })));
    let error = test.engine().delete_pod(&stranger, None, Duration::ZERO).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound);
    let error = test.engine().pod_status(&stranger).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::NotFound);
}
