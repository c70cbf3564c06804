//! The lifecycle of pods: order, restarts, back-off, probes, updates.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use tokio::sync::watch;
use vk_pod_engine::testing::{Call, Events, Pull};
use vk_provider::{Provider, error::Kind};

use crate::support::{
    FOREVER, STUBBORN, TestEngine, bundle, container, container_status, exit_code, gated, is_running, pod,
    reference, statuses, waiting,
};

#[tokio::test(start_paused = true)]
async fn a_pod_comes_to_run_with_events_of_each_step() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    let status = test.running(&made).await;
    let app = container_status(&status, "app");
    assert!(app.container_id.as_deref().unwrap().starts_with("fake://"), "{app:#?}");
    assert_eq!((app.restart_count, app.started), (0, Some(true)));
    assert!(status.pod_ip.is_some());
    let reasons: Vec<String> = test.events(&made).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["Pulling", "Pulled", "Created", "Started"]);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_crashes_is_restarted_at_once_and_then_with_back_off() {
    let test = TestEngine::new();
    let made = test.create(&pod("a", json!({ "containers": [container("app", "sleep 1; exit 3")] }))).await;
    let mut starts = Vec::new();
    for count in 0..5 {
        test.until(&made, "the next restart", |status| {
            let app = container_status(status, "app");
            app.restart_count == count && app.state.as_ref().is_some_and(|state| state.running.is_some())
        })
        .await;
        starts.push(tokio::time::Instant::now());
        let held = test.until(&made, "the crash shows", |status| {
            let app = container_status(status, "app");
            app.restart_count > count || !waiting(app).is_empty() || exit_code(app).is_some()
        });
        held.await;
    }
    let gaps: Vec<u64> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    // One second of life, up to one until the end is seen, and the back-off from the end.
    for (gap, backoff) in gaps.iter().zip([0, 10, 20, 40]) {
        assert!((backoff + 1..=backoff + 3).contains(gap), "gaps of {gaps:?} s");
    }
    let status = test.until(&made, "back-off shows", |status| {
        waiting(container_status(status, "app")) == "CrashLoopBackOff"
    });
    let status = status.await;
    let app = container_status(&status, "app");
    let last = app.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(test.count(&made, "BackOff") > 0);
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
    // Of each name one that is dead is kept.
    let dead = test.runtime.containers().into_iter().filter(|one| !one.running).count();
    assert!(dead <= 2, "{:?}", test.runtime.containers());
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_and_before_the_others() {
    let test = TestEngine::new();
    let made = test
        .create(&pod(
            "a",
            json!({
                "initContainers": [container("one", "sleep 3"), container("two", "sleep 2")],
                "containers": [container("app", FOREVER)],
            }),
        ))
        .await;
    let status = test
        .until(&made, "the first runs", |status| {
            container_status(status, "one").state.as_ref().is_some_and(|state| state.running.is_some())
        })
        .await;
    assert_eq!(waiting(container_status(&status, "two")), "PodInitializing");
    assert_eq!(waiting(container_status(&status, "app")), "PodInitializing");
    let status = test.running(&made).await;
    let names: Vec<String> = test.runtime.containers().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["one", "two", "app"]);
    assert_eq!(exit_code(container_status(&status, "one")), Some(0));
    assert!(container_status(&status, "one").ready);
}

#[tokio::test(start_paused = true)]
async fn a_failed_init_container_fails_a_pod_that_is_never_restarted() {
    let test = TestEngine::new();
    let made = test
        .create(&pod(
            "a",
            json!({
                "restartPolicy": "Never",
                "initContainers": [container("one", "sleep 1; exit 9")],
                "containers": [container("app", FOREVER)],
            }),
        ))
        .await;
    let status = test.until(&made, "the pod fails", |status| status.phase.as_deref() == Some("Failed")).await;
    assert_eq!(exit_code(container_status(&status, "one")), Some(9));
    assert_eq!(waiting(container_status(&status, "app")), "PodInitializing");
    test.eventually("the sandbox is stopped", || test.runtime.count(Call::StopSandbox) > 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_runs_beside_the_others_and_ends_after_them() {
    let test = TestEngine::new();
    let mut sidecar = container("proxy", FOREVER);
    sidecar["restartPolicy"] = json!("Always");
    let made = test
        .create(&pod(
            "a",
            json!({
                "restartPolicy": "Never",
                "initContainers": [sidecar, container("setup", "sleep 1")],
                "containers": [container("app", "sleep 5")],
            }),
        ))
        .await;
    let status = test.running(&made).await;
    assert!(container_status(&status, "proxy").state.as_ref().unwrap().running.is_some());
    let status =
        test.until(&made, "the pod ends", |status| status.phase.as_deref() == Some("Succeeded")).await;
    assert_eq!(exit_code(container_status(&status, "app")), Some(0));
    assert!(exit_code(container_status(&status, "proxy")).is_some());
    assert_eq!(test.runtime.running(&made.uid), []);
    assert_eq!(container_status(&status, "proxy").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_is_tried_again_with_back_off() {
    let test = TestEngine::new();
    test.runtime.pulls("docker.io/library/none:1", Pull::Fails("no such image".to_owned()));
    test.runtime.pulls("none:1", Pull::Fails("no such image".to_owned()));
    let mut app = container("app", FOREVER);
    app["image"] = json!("none:1");
    let made = test.create(&pod("a", json!({ "containers": [app] }))).await;
    test.until(&made, "the error shows", |status| waiting(container_status(status, "app")) == "ErrImagePull")
        .await;
    let status = test
        .until(&made, "back-off shows", |status| {
            waiting(container_status(status, "app")) == "ImagePullBackOff"
        })
        .await;
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    test.runtime.pulls("none:1", Pull::After(Duration::from_secs(3)));
    test.runtime.pulls("docker.io/library/none:1", Pull::After(Duration::from_secs(3)));
    test.running(&made).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_not_there_shows_as_the_runtime_says_it() {
    for at_create in [false, true] {
        let test = TestEngine::new();
        test.runtime.set(|quirks| quirks.bad_command_at_create = at_create);
        let mut app = container("app", "");
        app["command"] = json!(["/no/such"]);
        let made = test.create(&pod("a", json!({ "containers": [app] }))).await;
        let reason = if at_create { "CreateContainerError" } else { "RunContainerError" };
        let status =
            test.until(&made, reason, |status| waiting(container_status(status, "app")) == reason).await;
        let state = container_status(&status, "app").state.clone().unwrap().waiting.unwrap();
        assert!(state.message.unwrap().contains("/no/such"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_liveness_probe_restarts_the_container() {
    let test = TestEngine::new();
    let mut app = container("app", FOREVER);
    app["livenessProbe"] =
        json!({ "exec": { "command": ["test", "-f", "/alive"] }, "periodSeconds": 1, "failureThreshold": 2 });
    test.runtime.touch("app", "/alive");
    let made = test.create(&pod("a", json!({ "containers": [app] }))).await;
    let first = test.running(&made).await;
    test.runtime.untouch("app", "/alive");
    let second = test
        .until(&made, "it is restarted", |status| container_status(status, "app").restart_count > 0)
        .await;
    assert_ne!(container_status(&first, "app").container_id, container_status(&second, "app").container_id);
    assert!(test.count(&made, "Unhealthy") > 0 && test.count(&made, "Killing") > 0);
    assert_eq!(test.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_its_probe() {
    let test = TestEngine::new();
    let mut app = container("app", FOREVER);
    app["readinessProbe"] =
        json!({ "exec": { "command": ["test", "-f", "/ready"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let made = test.create(&pod("a", json!({ "containers": [app] }))).await;
    let status = test.running(&made).await;
    assert!(!container_status(&status, "app").ready);
    test.runtime.touch("app", "/ready");
    test.until(&made, "it is ready", |status| container_status(status, "app").ready).await;
    test.runtime.untouch("app", "/ready");
    test.until(&made, "it is not ready any more", |status| !container_status(status, "app").ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_termination_message_is_read() {
    let test = TestEngine::new();
    let made = test
        .create(&pod(
            "a",
            json!({ "restartPolicy": "Never", "containers": [container("app", "sleep 1; message all is lost; exit 4")] }),
        ))
        .await;
    let status = test.until(&made, "the pod fails", |status| status.phase.as_deref() == Some("Failed")).await;
    let ended = container_status(&status, "app").state.clone().unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.message.as_deref()), (4, Some("all is lost")));
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_stops_the_container_and_shows() {
    let test = TestEngine::new();
    let mut app = container("app", FOREVER);
    app["lifecycle"] = json!({ "postStart": { "exec": { "command": ["false"] } } });
    let made = test.create(&pod("a", json!({ "containers": [app] }))).await;
    test.until(&made, "the failure shows", |status| {
        waiting(container_status(status, "app")) == "PostStartHookError"
    })
    .await;
    assert!(test.count(&made, "FailedPostStartHook") > 0);
}

fn changed(pod: &Arc<Pod>, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut pod = (**pod).clone();
    change(&mut pod);
    Arc::new(pod)
}

#[tokio::test(start_paused = true)]
async fn a_new_image_restarts_the_container_in_place() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER), container("other", FOREVER)] }));
    let made = test.create(&wanted).await;
    let before = test.running(&made).await;
    let newer = changed(&wanted, |pod| {
        pod.spec.as_mut().unwrap().containers[0].image = Some("busybox:1.38".to_owned());
    });
    test.engine().update_pod(bundle(&newer)).await.unwrap();
    let after = test
        .until(&made, "the new image runs", |status| {
            is_running(status) && container_status(status, "app").image.contains("1.38")
        })
        .await;
    assert_eq!(container_status(&after, "app").restart_count, 1);
    assert_eq!(
        container_status(&after, "other").container_id,
        container_status(&before, "other").container_id
    );
    let message = "Container app definition changed, will be restarted";
    assert!(test.events(&made).iter().any(|(_, told)| told == message), "{:?}", test.events(&made));
}

#[tokio::test(start_paused = true)]
async fn a_resize_is_refused_and_the_pod_goes_on() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    let before = test.running(&made).await;
    let larger = changed(&wanted, |pod| {
        let resources = json!({ "limits": { "memory": "64Mi" } });
        pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).ok();
    });
    let error = test.engine().update_pod(bundle(&larger)).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unsupported);
    assert_eq!(test.status(&made).await.container_statuses, before.container_statuses);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_joins_and_is_not_restarted() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = test.create(&wanted).await;
    let before = test.running(&made).await;
    let debugged = changed(&wanted, |pod| {
        let debugger = container("debugger", "sleep 2; exit 1");
        pod.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(json!([debugger])).ok();
    });
    test.engine().update_pod(bundle(&debugged)).await.unwrap();
    test.until(&made, "it has ended", |status| {
        statuses(status).any(|one| one.name == "debugger" && exit_code(one) == Some(1))
    })
    .await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    let after = test.status(&made).await;
    assert_eq!(container_status(&after, "debugger").restart_count, 0);
    assert_eq!(container_status(&after, "app").container_id, container_status(&before, "app").container_id);
}

#[tokio::test(start_paused = true)]
async fn with_events_an_end_is_seen_at_once_and_the_runtime_listed_seldomer() {
    let test = TestEngine::new();
    test.runtime.set(|quirks| quirks.events = Events::Flowing);
    let test = {
        // Events are asked for at the start.
        let mut test = test;
        test.close();
        test.open();
        test
    };
    let made = test.create(&pod("a", json!({ "containers": [container("app", STUBBORN)] }))).await;
    test.running(&made).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let lists = test.runtime.count(Call::List);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let calm = test.runtime.count(Call::List) - lists;
    assert!(calm < 20, "{calm} lists in a minute");
    let ended = tokio::time::Instant::now();
    test.runtime.finish(&made.uid, "app", 1);
    test.until(&made, "the restart shows", |status| container_status(status, "app").restart_count == 1).await;
    assert!(ended.elapsed() < Duration::from_millis(500), "{:?}", ended.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_kubelet_refuses_fails_and_nothing_is_made_of_it() {
    let test = TestEngine::new();
    let wanted = pod(
        "a",
        json!({
            "containers": [container("app", FOREVER)],
            "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] },
        }),
    );
    let made = test.create(&wanted).await;
    let status = test.until(&made, "the pod fails", |status| status.phase.as_deref() == Some("Failed")).await;
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    assert_eq!(
        (status.conditions, status.container_statuses),
        (None, None),
        "as by a kubelet: why, and nothing else"
    );
    assert!(status.message.unwrap().starts_with("Pod was rejected: "));
    assert_eq!(test.count(&made, "SysctlForbidden"), 1);
    assert_eq!(test.runtime.count(Call::RunSandbox), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_needs_something_starts_as_soon_as_it_is_there() {
    let test = TestEngine::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = reference(&wanted);
    let gate = watch::Sender::new(false);
    test.engine().create_pod(gated(&wanted, &gate)).await.unwrap();
    let shows = |status: &PodStatus| waiting(container_status(status, "app")) == "CreateContainerConfigError";
    let status = test.until(&made, "what is missing shows", shows).await;
    let state = container_status(&status, "app").state.clone().unwrap().waiting.unwrap();
    assert!(state.message.unwrap().contains("settings"));
    assert!(test.count(&made, "Failed") > 0);
    let opened = tokio::time::Instant::now();
    gate.send_replace(true);
    test.running(&made).await;
    assert!(opened.elapsed() < Duration::from_millis(200), "{:?}", opened.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_made_holds_the_pod_back_and_is_told() {
    let test = TestEngine::new();
    let wanted = pod(
        "a",
        json!({
            "containers": [{
                "name": "app", "image": "busybox:1.37", "command": ["sh", "-c", FOREVER],
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "hostPath": { "path": "/no/such/place", "type": "Directory" } }],
        }),
    );
    let made = test.create(&wanted).await;
    test.eventually("it is told", || test.count(&made, "FailedMount") > 1).await;
    let status = test.status(&made).await;
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(waiting(container_status(&status, "app")), "ContainerCreating");
    assert_eq!(test.runtime.count(Call::RunSandbox), 0);
    // Later and later, and not at every look.
    tokio::time::sleep(Duration::from_mins(10)).await;
    let told = test.count(&made, "FailedMount");
    assert!(told < 20, "{told} times");
}
