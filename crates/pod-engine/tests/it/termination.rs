//! What is kept of a finished pod, and for how long.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use vk_pod_engine::testing::Call;
use vk_provider::{Provider, error::Kind};

use crate::support::{
    FOREVER, STUBBORN, TestEngine, container, container_status, deleted, exit_code, pod, statuses, waiting,
};

async fn nothing_is_left(test: &TestEngine) {
    let root = test.folder.path();
    let count = |folder: &str| std::fs::read_dir(root.join(folder)).map_or(0, Iterator::count);
    test.eventually("nothing is left", || {
        test.runtime.containers().is_empty()
            && test.runtime.sandboxes().is_empty()
            && count("root/pods") == 0
            && count("logs") == 0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_stopped_and_not_deleted_keeps_its_end_and_its_logs_until_it_is() {
    for later in ["the user deletes it", "it is a leftover"] {
        let test = TestEngine::new();
        let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
        let made = test.create(&wanted).await;
        test.running(&made).await;
        test.engine().delete_pod(&made, Some(wanted.clone()), Duration::from_secs(30)).await.unwrap();
        test.wait_finished(&made).await.expect("the end shows");
        tokio::time::sleep(Duration::from_mins(30)).await;
        let status = test.status(&made).await;
        assert_eq!(exit_code(container_status(&status, "app")), Some(0), "{later}");
        assert_eq!(test.runtime.containers().len(), 1, "{later}");
        assert_eq!(std::fs::read_dir(test.folder.path().join("logs")).unwrap().count(), 1, "{later}");
        assert_eq!(test.engine().pods().await.unwrap().len(), 1, "{later}");
        let last_known = (later == "the user deletes it").then(|| deleted(&wanted));
        test.engine().delete_pod(&made, last_known, Duration::from_secs(30)).await.unwrap();
        nothing_is_left(&test).await;
        let gone = test.engine().pod_status(&made).await.unwrap_err();
        assert_eq!(*gone.kind(), Kind::NotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn that_memory_was_short_shows_also_where_the_runtime_learns_it_late() {
    let test = TestEngine::new();
    let spec = json!({ "restartPolicy": "Never", "containers": [container("app", "sleep 1; oom late")] });
    let wanted = pod("a", spec);
    let made = test.create(&wanted).await;
    let reason = |status: &k8s_openapi::api::core::v1::PodStatus| {
        container_status(status, "app").state.clone().and_then(|state| state.terminated?.reason)
    };
    let ended = test.until(&made, "it ends", |status| reason(status).is_some()).await;
    assert_eq!(reason(&ended).as_deref(), Some("Error"), "nobody knows better yet");
    let known = test.until(&made, "why", |status| reason(status).as_deref() != Some("Error")).await;
    assert_eq!(reason(&known).as_deref(), Some("OOMKilled"));
    let asked = test.runtime.count(Call::Container);
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(test.runtime.count(Call::Container), asked, "what is known is not asked again");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_killed_container_is_reported_in_seconds_also_if_the_clock_was_set_back() {
    let test = TestEngine::behind(jiff::SignedDuration::from_hours(6));
    let spec = json!({ "restartPolicy": "Never", "containers": [container("app", "sleep 1; exit 137")] });
    let made = test.create(&pod("a", spec)).await;
    test.running(&made).await;
    let begun = Instant::now();
    test.until(&made, "it fails", |status| status.phase.as_deref() == Some("Failed")).await;
    test.eventually("the sandbox is stopped", || test.runtime.count(Call::StopSandbox) > 0).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // Until then the reason may change.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let asked = test.runtime.count(Call::Container);
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(test.runtime.count(Call::Container), asked, "what is known is not asked again");
}

#[tokio::test(start_paused = true)]
async fn a_crashed_container_is_restarted_in_seconds_also_if_the_clock_was_set_back() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", "sleep 1; exit 1")] }))).await;
    test.until(&made, "it waits after its second crash", |status| {
        statuses(status).any(|status| waiting(status) == "CrashLoopBackOff")
    })
    .await;
    // The back-off knows the start from before; a start that is hours before the crash would not count.
    test.set_clock_back(jiff::SignedDuration::from_hours(6));
    let begun = Instant::now();
    test.until(&made, "it is restarted twice", |status| {
        statuses(status).any(|status| status.restart_count >= 2)
    })
    .await;
    assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_termination_message_outlives_the_process() {
    let mut test = TestEngine::new();
    let mut app = container("app", "message bye; sleep 1; exit 3");
    app["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let wanted = pod(
        "a",
        json!({ "restartPolicy": "Never", "volumes": [{ "name": "data", "emptyDir": {} }], "containers": [app] }),
    );
    let made = test.create(&wanted).await;
    let before = test.until(&made, "it ends", |status| status.phase.as_deref() == Some("Failed")).await;
    let message = |status: &k8s_openapi::api::core::v1::PodStatus| {
        container_status(status, "app").state.clone().unwrap().terminated.unwrap().message
    };
    assert_eq!(message(&before).as_deref(), Some("bye"));
    tokio::time::sleep(Duration::from_secs(30)).await;
    let folder = test.folder.path().join("root/pods").join(&*made.uid);
    assert!(!folder.join("volumes").exists(), "volumes go with the end");
    test.close();
    test.open();
    test.create(&wanted).await;
    let after = test.until(&made, "it is known", |status| status.phase.as_deref() == Some("Failed")).await;
    assert_eq!(message(&after).as_deref(), Some("bye"));
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::ZERO).await.unwrap();
    nothing_is_left(&test).await;
}

#[tokio::test(start_paused = true)]
async fn a_leftover_is_stopped_in_the_order_of_the_pod_that_was_noted() {
    let mut test = TestEngine::new();
    let mut proxy = container("proxy", FOREVER);
    proxy["restartPolicy"] = json!("Always");
    let wanted = pod("a", json!({ "initContainers": [proxy], "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    test.running(&made).await;
    test.runtime.set(|quirks| quirks.stop_takes = Duration::from_secs(2));
    test.close();
    test.open();
    test.engine().delete_pod(&made, None, Duration::from_secs(30)).await.unwrap();
    let status = test.wait_finished(&made).await.expect("the end shows before all is forgotten");
    let finished = |name: &str| {
        let state = container_status(&status, name).state.clone().unwrap();
        state.terminated.unwrap().finished_at.unwrap().0
    };
    assert!(finished("app") < finished("proxy"), "{status:#?}");
}

#[tokio::test(start_paused = true)]
async fn absurd_numbers_do_no_harm() {
    let test = TestEngine::new();
    let mut app = container("app", STUBBORN);
    let probe = json!({
        "exec": { "command": ["true"] }, "initialDelaySeconds": i32::MAX, "periodSeconds": i32::MAX,
        "timeoutSeconds": i32::MAX, "failureThreshold": i32::MAX, "successThreshold": i32::MAX,
        "terminationGracePeriodSeconds": i64::MAX,
    });
    app["readinessProbe"] = probe.clone();
    app["livenessProbe"] = probe;
    app["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": i64::MAX } } });
    // This one fails at once, and is then stopped with all the time in the test.
    let mut ill = container("ill", STUBBORN);
    ill["livenessProbe"] = json!({
        "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 1,
        "terminationGracePeriodSeconds": i64::MAX,
    });
    let wanted = pod(
        "a",
        json!({
            "terminationGracePeriodSeconds": i64::MAX, "activeDeadlineSeconds": i64::MAX,
            "containers": [app, ill],
        }),
    );
    let made = test.create(&wanted).await;
    test.eventually("it is stopped", || test.runtime.count(Call::StopContainer) > 0).await;
    let absurd = Duration::from_secs(i64::MAX.unsigned_abs());
    for grace in [Duration::MAX, absurd] {
        test.engine().delete_pod(&made, Some(deleted(&wanted)), grace).await.unwrap();
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(test.runtime.running(&made.uid).len(), 2, "they have all the time in the test");
    }
    let begun = Instant::now();
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(2)).await.unwrap();
    test.wait_finished(&made).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
