//! A call that fails, hangs, or loses its response: the pod reaches the same state, nothing runs twice, and nothing is left behind.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use vk_pod_engine::testing::{Call, Effect, Fault};
use vk_provider::{Provider, error::Kind};

use crate::support::{FOREVER, TestEngine, container, container_status, deleted, is_running, pod};

/// An init container, a sidecar and two regular containers, one of them with hooks.
fn wanted() -> Arc<Pod> {
    let mut sidecar = container("proxy", FOREVER);
    sidecar["restartPolicy"] = json!("Always");
    let mut app = container("app", FOREVER);
    app["lifecycle"] = json!({
        "preStop": { "exec": { "command": ["sh", "-c", "sleep 1"] } },
        "postStart": { "exec": { "command": ["true"] } },
    });
    pod(
        "a",
        json!({
            "initContainers": [container("setup", "sleep 1"), sidecar],
            "containers": [app, container("other", FOREVER)],
        }),
    )
}

fn is_up(status: &PodStatus) -> bool {
    is_running(status)
        && container_status(status, "proxy").state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Lives a whole life with one fault. Tells whether it struck.
async fn run_lifecycle(number: u64, effect: Effect) -> bool {
    let test = TestEngine::new();
    test.runtime.fault(Fault::nth(number, effect.clone()));
    let wanted = wanted();
    let made = test.create(&wanted).await;
    test.until(&made, &format!("the pod runs after call {number}: {effect:?}"), is_up).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    test.until(&made, &format!("the pod still runs after call {number}: {effect:?}"), is_up).await;
    let mut names: Vec<String> = test.runtime.running(&made.uid).into_iter().map(|one| one.name).collect();
    names.sort();
    assert_eq!(names, ["app", "other", "proxy"], "after call {number}: {effect:?}");
    test.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(10)).await.unwrap();
    test.wait_finished(&made).await;
    assert_eq!(test.runtime.running(&made.uid), [], "after call {number}: {effect:?}");
    test.eventually("nothing is left", || {
        test.runtime.containers().is_empty() && test.runtime.sandboxes().is_empty()
    })
    .await;
    assert_eq!(test.runtime.violations(), Vec::<String>::new(), "after call {number}: {effect:?}");
    test.runtime.calls() > number
}

async fn at_every_call(effect: Effect) {
    let mut number = 0;
    // Calls of the relist never end, so the number is limited.
    while number < 120 && run_lifecycle(number, effect.clone()).await {
        number += 1;
    }
    assert!(number > 40, "only {number} calls were tried");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_once_changes_nothing_in_the_end() {
    at_every_call(Effect::Fails(Kind::Unavailable, "the runtime stumbles".to_owned())).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_once_changes_nothing_in_the_end() {
    at_every_call(Effect::Fails(Kind::Internal, "something is odd".to_owned())).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_changes_nothing_in_the_end() {
    at_every_call(Effect::Lost).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_changes_nothing_in_the_end() {
    at_every_call(Effect::Hangs).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_killed_anywhere_is_continued_by_the_next() {
    for step in 0..60_u32 {
        let mut test = TestEngine::new();
        let wanted = wanted();
        let made = test.create(&wanted).await;
        // Each call is slow, so that the engine ends in the middle of one.
        test.runtime.fault(Fault {
            call: None,
            after: 0,
            times: 40,
            effect: Effect::Delayed(Duration::from_millis(100)),
        });
        tokio::time::sleep(Duration::from_millis(50 * u64::from(step))).await;
        test.close();
        test.open();
        test.create(&wanted).await;
        test.until(&made, &format!("the pod runs after step {step}"), is_up).await;
        let mut names: Vec<String> =
            test.runtime.running(&made.uid).into_iter().map(|one| one.name).collect();
        names.sort();
        assert_eq!(names, ["app", "other", "proxy"], "after step {step}");
        assert_eq!(test.runtime.violations(), Vec::<String>::new(), "after step {step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_creation_that_answers_the_first_container_is_no_second_one() {
    for number in 0..60 {
        let test = TestEngine::new();
        test.runtime.set(|quirks| quirks.duplicate_is_existing = true);
        test.runtime.fault(Fault::nth(number, Effect::Lost));
        let made = test.create(&wanted()).await;
        test.until(&made, &format!("the pod runs after call {number}"), is_up).await;
        assert_eq!(test.runtime.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_of_a_pod_is_an_error_of_that_pod_and_the_task_recovers() {
    let mut test = TestEngine::new();
    let wanted = wanted();
    let made = test.create(&wanted).await;
    test.until(&made, "the pod runs", is_up).await;
    test.close();
    test.runtime.fault(Fault {
        call: Some(Call::Sandbox),
        after: 0,
        times: u64::MAX,
        effect: Effect::Panics,
    });
    test.open();
    let error = test.engine().pod_status(&made).await.unwrap_err();
    assert!(error.message().contains("the task of the pod panicked: Sandbox"), "{error}");
    test.runtime.clear_faults();
    test.create(&wanted).await;
    test.until(&made, "the pod runs again", is_up).await;
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
}
