//! A call that fails, hangs, or loses its response: the pod reaches the same state, nothing runs twice, and nothing is left behind.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use vk_pod_engine::testing::{Call, Effect, Fault};
use vk_provider::{Provider, error::Kind};

use crate::support::{FOREVER, World, container, deleted, is_running, one, pod};

/// An init container, a sidecar, two regular ones of which one crashes once in a while, a hook.
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

fn settled(status: &PodStatus) -> bool {
    is_running(status) && one(status, "proxy").state.as_ref().is_some_and(|state| state.running.is_some())
}

/// Lives a whole life with one fault. Tells whether it struck.
async fn life(number: u64, effect: Effect) -> bool {
    let world = World::new();
    world.runtime.fault(Fault::nth(number, effect.clone()));
    let wanted = wanted();
    let made = world.create(&wanted).await;
    world.until(&made, &format!("the pod runs after call {number}: {effect:?}"), settled).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.until(&made, &format!("the pod still runs after call {number}: {effect:?}"), settled).await;
    let mut names: Vec<String> = world.runtime.running(&made.uid).into_iter().map(|one| one.name).collect();
    names.sort();
    assert_eq!(names, ["app", "other", "proxy"], "after call {number}: {effect:?}");
    world.engine().delete_pod(&made, Some(deleted(&wanted)), Duration::from_secs(10)).await.unwrap();
    world.over(&made).await;
    assert_eq!(world.runtime.running(&made.uid), [], "after call {number}: {effect:?}");
    world
        .eventually("nothing is left", || {
            world.runtime.containers().is_empty() && world.runtime.sandboxes().is_empty()
        })
        .await;
    assert_eq!(world.runtime.violations(), Vec::<String>::new(), "after call {number}: {effect:?}");
    world.runtime.calls() > number
}

async fn everywhere(effect: Effect) {
    let mut number = 0;
    // The calls of the relist go on for ever: a life ends within so many.
    while number < 120 && life(number, effect.clone()).await {
        number += 1;
    }
    assert!(number > 40, "only {number} calls were tried");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_once_changes_nothing_in_the_end() {
    everywhere(Effect::Fails(Kind::Unavailable, "the runtime stumbles".to_owned())).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_once_changes_nothing_in_the_end() {
    everywhere(Effect::Fails(Kind::Internal, "something is odd".to_owned())).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_changes_nothing_in_the_end() {
    everywhere(Effect::Lost).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_changes_nothing_in_the_end() {
    everywhere(Effect::Hangs).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_killed_anywhere_is_continued_by_the_next() {
    for step in 0..60_u32 {
        let mut world = World::new();
        let wanted = wanted();
        let made = world.create(&wanted).await;
        // Each call takes a while, so that the end comes in the middle of one.
        world.runtime.fault(Fault {
            call: None,
            after: 0,
            times: 40,
            effect: Effect::Delayed(Duration::from_millis(100)),
        });
        tokio::time::sleep(Duration::from_millis(50 * u64::from(step))).await;
        world.close();
        world.open();
        world.create(&wanted).await;
        world.until(&made, &format!("the pod runs after step {step}"), settled).await;
        let mut names: Vec<String> =
            world.runtime.running(&made.uid).into_iter().map(|one| one.name).collect();
        names.sort();
        assert_eq!(names, ["app", "other", "proxy"], "after step {step}");
        assert_eq!(world.runtime.violations(), Vec::<String>::new(), "after step {step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_creation_that_answers_the_first_container_is_no_second_one() {
    for number in 0..60 {
        let world = World::new();
        world.runtime.set(|quirks| quirks.duplicate_is_existing = true);
        world.runtime.fault(Fault::nth(number, Effect::Lost));
        let made = world.create(&wanted()).await;
        world.until(&made, &format!("the pod runs after call {number}"), settled).await;
        assert_eq!(world.runtime.violations(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_task_of_a_pod_is_an_error_of_that_pod_and_the_task_recovers() {
    let mut world = World::new();
    let wanted = wanted();
    let made = world.create(&wanted).await;
    world.until(&made, "the pod runs", settled).await;
    world.close();
    world.runtime.fault(Fault {
        call: Some(Call::Sandbox),
        after: 0,
        times: u64::MAX,
        effect: Effect::Panics,
    });
    world.open();
    let error = world.engine().pod_status(&made).await.unwrap_err();
    assert!(error.message().contains("the task of the pod panicked: Sandbox"), "{error}");
    world.runtime.clear_faults();
    world.create(&wanted).await;
    world.until(&made, "the pod runs again", settled).await;
    assert_eq!(world.runtime.violations(), Vec::<String>::new());
}
