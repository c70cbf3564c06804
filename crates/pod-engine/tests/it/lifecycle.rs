//! The lifecycle of pods: order, restarts, back-off, probes, updates.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use tokio::sync::watch;
use vk_pod_engine::testing::{Call, Events, Pull};
use vk_provider::{Provider, error::Kind};

use crate::support::{
    FOREVER, STUBBORN, World, bundle, container, exit_code, gated, is_running, one, pod, reference, statuses,
    waiting,
};

#[tokio::test(start_paused = true)]
async fn a_pod_comes_to_run_with_events_of_each_step() {
    let world = World::new();
    let made = world.create(&pod("a", json!({ "containers": [container("app", FOREVER)] }))).await;
    let status = world.running(&made).await;
    let app = one(&status, "app");
    assert!(app.container_id.as_deref().unwrap().starts_with("fake://"), "{app:#?}");
    assert_eq!((app.restart_count, app.started), (0, Some(true)));
    assert!(status.pod_ip.is_some());
    let reasons: Vec<String> = world.events(&made).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["Pulling", "Pulled", "Created", "Started"]);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_crashes_is_restarted_at_once_and_then_with_back_off() {
    let world = World::new();
    let made = world.create(&pod("a", json!({ "containers": [container("app", "sleep 1; exit 3")] }))).await;
    let mut starts = Vec::new();
    for count in 0..5 {
        world
            .until(&made, "the next restart", |status| {
                let app = one(status, "app");
                app.restart_count == count && app.state.as_ref().is_some_and(|state| state.running.is_some())
            })
            .await;
        starts.push(tokio::time::Instant::now());
        let held = world.until(&made, "the crash shows", |status| {
            let app = one(status, "app");
            app.restart_count > count || !waiting(app).is_empty() || exit_code(app).is_some()
        });
        held.await;
    }
    let gaps: Vec<u64> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    // One second of life, up to one until the end is seen, and the back-off from the end.
    for (gap, backoff) in gaps.iter().zip([0, 10, 20, 40]) {
        assert!((backoff + 1..=backoff + 3).contains(gap), "gaps of {gaps:?} s");
    }
    let status =
        world.until(&made, "back-off shows", |status| waiting(one(status, "app")) == "CrashLoopBackOff");
    let status = status.await;
    let app = one(&status, "app");
    let last = app.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(world.count(&made, "BackOff") > 0);
    assert_eq!(world.runtime.violations(), Vec::<String>::new());
    // Of each name one that is dead is kept.
    let dead = world.runtime.containers().into_iter().filter(|one| !one.running).count();
    assert!(dead <= 2, "{:?}", world.runtime.containers());
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_in_order_and_before_the_others() {
    let world = World::new();
    let made = world
        .create(&pod(
            "a",
            json!({
                "initContainers": [container("one", "sleep 3"), container("two", "sleep 2")],
                "containers": [container("app", FOREVER)],
            }),
        ))
        .await;
    let status = world
        .until(&made, "the first runs", |status| {
            one(status, "one").state.as_ref().is_some_and(|state| state.running.is_some())
        })
        .await;
    assert_eq!(waiting(one(&status, "two")), "PodInitializing");
    assert_eq!(waiting(one(&status, "app")), "PodInitializing");
    let status = world.running(&made).await;
    let names: Vec<String> = world.runtime.containers().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["one", "two", "app"]);
    assert_eq!(exit_code(one(&status, "one")), Some(0));
    assert!(one(&status, "one").ready);
}

#[tokio::test(start_paused = true)]
async fn a_failed_init_container_fails_a_pod_that_is_never_restarted() {
    let world = World::new();
    let made = world
        .create(&pod(
            "a",
            json!({
                "restartPolicy": "Never",
                "initContainers": [container("one", "sleep 1; exit 9")],
                "containers": [container("app", FOREVER)],
            }),
        ))
        .await;
    let status =
        world.until(&made, "the pod fails", |status| status.phase.as_deref() == Some("Failed")).await;
    assert_eq!(exit_code(one(&status, "one")), Some(9));
    assert_eq!(waiting(one(&status, "app")), "PodInitializing");
    world.eventually("the sandbox is stopped", || world.runtime.count(Call::StopSandbox) > 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_runs_beside_the_others_and_ends_after_them() {
    let world = World::new();
    let mut sidecar = container("proxy", FOREVER);
    sidecar["restartPolicy"] = json!("Always");
    let made = world
        .create(&pod(
            "a",
            json!({
                "restartPolicy": "Never",
                "initContainers": [sidecar, container("setup", "sleep 1")],
                "containers": [container("app", "sleep 5")],
            }),
        ))
        .await;
    let status = world.running(&made).await;
    assert!(one(&status, "proxy").state.as_ref().unwrap().running.is_some());
    let status =
        world.until(&made, "the pod ends", |status| status.phase.as_deref() == Some("Succeeded")).await;
    assert_eq!(exit_code(one(&status, "app")), Some(0));
    assert!(exit_code(one(&status, "proxy")).is_some());
    assert_eq!(world.runtime.running(&made.uid), []);
    assert_eq!(one(&status, "proxy").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_is_tried_again_with_back_off() {
    let world = World::new();
    world.runtime.pulls("docker.io/library/none:1", Pull::Fails("no such image".to_owned()));
    world.runtime.pulls("none:1", Pull::Fails("no such image".to_owned()));
    let mut app = container("app", FOREVER);
    app["image"] = json!("none:1");
    let made = world.create(&pod("a", json!({ "containers": [app] }))).await;
    world.until(&made, "the error shows", |status| waiting(one(status, "app")) == "ErrImagePull").await;
    let status = world
        .until(&made, "back-off shows", |status| waiting(one(status, "app")) == "ImagePullBackOff")
        .await;
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    world.runtime.pulls("none:1", Pull::After(Duration::from_secs(3)));
    world.runtime.pulls("docker.io/library/none:1", Pull::After(Duration::from_secs(3)));
    world.running(&made).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_not_there_shows_as_the_runtime_says_it() {
    for at_create in [false, true] {
        let world = World::new();
        world.runtime.set(|quirks| quirks.bad_command_at_create = at_create);
        let mut app = container("app", "");
        app["command"] = json!(["/no/such"]);
        let made = world.create(&pod("a", json!({ "containers": [app] }))).await;
        let reason = if at_create { "CreateContainerError" } else { "RunContainerError" };
        let status = world.until(&made, reason, |status| waiting(one(status, "app")) == reason).await;
        let state = one(&status, "app").state.clone().unwrap().waiting.unwrap();
        assert!(state.message.unwrap().contains("/no/such"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_liveness_probe_restarts_the_container() {
    let world = World::new();
    let mut app = container("app", FOREVER);
    app["livenessProbe"] =
        json!({ "exec": { "command": ["test", "-f", "/alive"] }, "periodSeconds": 1, "failureThreshold": 2 });
    world.runtime.touch("app", "/alive");
    let made = world.create(&pod("a", json!({ "containers": [app] }))).await;
    let first = world.running(&made).await;
    world.runtime.untouch("app", "/alive");
    let second = world.until(&made, "it is restarted", |status| one(status, "app").restart_count > 0).await;
    assert_ne!(one(&first, "app").container_id, one(&second, "app").container_id);
    assert!(world.count(&made, "Unhealthy") > 0 && world.count(&made, "Killing") > 0);
    assert_eq!(world.runtime.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn readiness_follows_its_probe() {
    let world = World::new();
    let mut app = container("app", FOREVER);
    app["readinessProbe"] =
        json!({ "exec": { "command": ["test", "-f", "/ready"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let made = world.create(&pod("a", json!({ "containers": [app] }))).await;
    let status = world.running(&made).await;
    assert!(!one(&status, "app").ready);
    world.runtime.touch("app", "/ready");
    world.until(&made, "it is ready", |status| one(status, "app").ready).await;
    world.runtime.untouch("app", "/ready");
    world.until(&made, "it is not ready any more", |status| !one(status, "app").ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_termination_message_is_read() {
    let world = World::new();
    let made = world
        .create(&pod(
            "a",
            json!({ "restartPolicy": "Never", "containers": [container("app", "sleep 1; message all is lost; exit 4")] }),
        ))
        .await;
    let status =
        world.until(&made, "the pod fails", |status| status.phase.as_deref() == Some("Failed")).await;
    let ended = one(&status, "app").state.clone().unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.message.as_deref()), (4, Some("all is lost")));
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_stops_the_container_and_shows() {
    let world = World::new();
    let mut app = container("app", FOREVER);
    app["lifecycle"] = json!({ "postStart": { "exec": { "command": ["false"] } } });
    let made = world.create(&pod("a", json!({ "containers": [app] }))).await;
    world
        .until(&made, "the failure shows", |status| waiting(one(status, "app")) == "PostStartHookError")
        .await;
    assert!(world.count(&made, "FailedPostStartHook") > 0);
}

fn changed(pod: &Arc<Pod>, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut pod = (**pod).clone();
    change(&mut pod);
    Arc::new(pod)
}

#[tokio::test(start_paused = true)]
async fn a_new_image_restarts_the_container_in_place() {
    let world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER), container("other", FOREVER)] }));
    let made = world.create(&wanted).await;
    let before = world.running(&made).await;
    let newer = changed(&wanted, |pod| {
        pod.spec.as_mut().unwrap().containers[0].image = Some("busybox:1.38".to_owned());
    });
    world.engine().update_pod(bundle(&newer)).await.unwrap();
    let after = world
        .until(&made, "the new image runs", |status| {
            is_running(status) && one(status, "app").image.contains("1.38")
        })
        .await;
    assert_eq!(one(&after, "app").restart_count, 1);
    assert_eq!(one(&after, "other").container_id, one(&before, "other").container_id);
    let message = "Container app definition changed, will be restarted";
    assert!(world.events(&made).iter().any(|(_, told)| told == message), "{:?}", world.events(&made));
}

#[tokio::test(start_paused = true)]
async fn a_resize_is_refused_and_the_pod_goes_on() {
    let world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    let before = world.running(&made).await;
    let larger = changed(&wanted, |pod| {
        let resources = json!({ "limits": { "memory": "64Mi" } });
        pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).ok();
    });
    let error = world.engine().update_pod(bundle(&larger)).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Unsupported);
    assert_eq!(world.status(&made).await.container_statuses, before.container_statuses);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_joins_and_is_not_restarted() {
    let world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = world.create(&wanted).await;
    let before = world.running(&made).await;
    let debugged = changed(&wanted, |pod| {
        let debugger = container("debugger", "sleep 2; exit 1");
        pod.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(json!([debugger])).ok();
    });
    world.engine().update_pod(bundle(&debugged)).await.unwrap();
    world
        .until(&made, "it has ended", |status| {
            statuses(status).any(|one| one.name == "debugger" && exit_code(one) == Some(1))
        })
        .await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    let after = world.status(&made).await;
    assert_eq!(one(&after, "debugger").restart_count, 0);
    assert_eq!(one(&after, "app").container_id, one(&before, "app").container_id);
}

#[tokio::test(start_paused = true)]
async fn with_events_an_end_is_seen_at_once_and_the_runtime_listed_seldomer() {
    let world = World::new();
    world.runtime.set(|quirks| quirks.events = Events::Flowing);
    let world = {
        // Events are asked for at the start.
        let mut world = world;
        world.close();
        world.open();
        world
    };
    let made = world.create(&pod("a", json!({ "containers": [container("app", STUBBORN)] }))).await;
    world.running(&made).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let lists = world.runtime.count(Call::List);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let calm = world.runtime.count(Call::List) - lists;
    assert!(calm < 20, "{calm} lists in a minute");
    let ended = tokio::time::Instant::now();
    world.runtime.finish(&made.uid, "app", 1);
    world.until(&made, "the restart shows", |status| one(status, "app").restart_count == 1).await;
    assert!(ended.elapsed() < Duration::from_millis(500), "{:?}", ended.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_kubelet_refuses_fails_and_nothing_is_made_of_it() {
    let world = World::new();
    let wanted = pod(
        "a",
        json!({
            "containers": [container("app", FOREVER)],
            "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] },
        }),
    );
    let made = world.create(&wanted).await;
    let status =
        world.until(&made, "the pod fails", |status| status.phase.as_deref() == Some("Failed")).await;
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    assert_eq!(
        (status.conditions, status.container_statuses),
        (None, None),
        "as by a kubelet: why, and nothing else"
    );
    assert!(status.message.unwrap().starts_with("Pod was rejected: "));
    assert_eq!(world.count(&made, "SysctlForbidden"), 1);
    assert_eq!(world.runtime.count(Call::RunSandbox), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_needs_something_starts_as_soon_as_it_is_there() {
    let world = World::new();
    let wanted = pod("a", json!({ "containers": [container("app", FOREVER)] }));
    let made = reference(&wanted);
    let gate = watch::Sender::new(false);
    world.engine().create_pod(gated(&wanted, &gate)).await.unwrap();
    let shows = |status: &PodStatus| waiting(one(status, "app")) == "CreateContainerConfigError";
    let status = world.until(&made, "what is missing shows", shows).await;
    let state = one(&status, "app").state.clone().unwrap().waiting.unwrap();
    assert!(state.message.unwrap().contains("settings"));
    assert!(world.count(&made, "Failed") > 0);
    let opened = tokio::time::Instant::now();
    gate.send_replace(true);
    world.running(&made).await;
    assert!(opened.elapsed() < Duration::from_millis(200), "{:?}", opened.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_made_holds_the_pod_back_and_is_told() {
    let world = World::new();
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
    let made = world.create(&wanted).await;
    world.eventually("it is told", || world.count(&made, "FailedMount") > 1).await;
    let status = world.status(&made).await;
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(waiting(one(&status, "app")), "ContainerCreating");
    assert_eq!(world.runtime.count(Call::RunSandbox), 0);
    // Later and later, and not at every look.
    tokio::time::sleep(Duration::from_mins(10)).await;
    let told = world.count(&made, "FailedMount");
    assert!(told < 20, "{told} times");
}
