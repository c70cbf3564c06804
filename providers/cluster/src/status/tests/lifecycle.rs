//! The status of a pod over its lifecycle, as specified in the guide.

use serde_json::json;

use super::{super::*, condition, ended, lower, running, upper};

fn app(status: &PodStatus) -> &ContainerStatus {
    &status.container_statuses.as_ref().unwrap()[0]
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// A running upper pod after five restarts.
fn upper_that_runs() -> Pod {
    let mut app = running("app");
    app["restartCount"] = json!(5);
    upper(json!({
        "phase": "Running", "qosClass": "Burstable", "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}],
        "containerStatuses": [app], "initContainerStatuses": [ended("setup", 0)],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "Drain"}],
    }))
}

#[test]
fn an_unscheduled_lower_pod_is_pending_with_waiting_containers() {
    let below = lower(json!({"phase": "Pending", "qosClass": "Burstable"}));
    let status = upper_status(&below, &upper(json!({"phase": "Pending"})), 0);
    let waiting = |name: &str, image: &str| {
        json!({"name": name, "image": image, "imageID": "", "ready": false, "restartCount": 0, "started": false,
               "state": {"waiting": {"reason": "PodInitializing"}}})
    };
    let expected = json!({
        "phase": "Pending",
        "containerStatuses": [waiting("app", "app:1")],
        "initContainerStatuses": [waiting("setup", "setup:1")],
    });
    assert_eq!(
        status,
        serde_json::from_value(expected).unwrap(),
        "as the core says it of a pod of which nothing is known"
    );
    let refused =
        lower(json!({"phase": "Failed", "reason": "NodeAffinity", "message": "no", "qosClass": "Burstable"}));
    let status = upper_status(&refused, &upper_that_runs(), 1);
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("NodeAffinity")));
    assert_eq!(status.container_statuses, None, "what a kubelet refused never had any");
}

#[test]
fn the_result_of_an_ended_lower_pod_is_reported() {
    for (phase, code) in [("Succeeded", 0), ("Failed", 3)] {
        let status = upper_status(
            &lower(json!({"phase": phase, "containerStatuses": [ended("app", code)]})),
            &upper_that_runs(),
            0,
        );
        assert_eq!((status.phase.as_deref(), exit_code(app(&status))), (Some(phase), Some(code)));
    }
}

#[test]
fn liqo_721_containers_of_a_terminating_pod_are_reported_individually() {
    let mut below = lower(json!({
        "phase": "Running", "containerStatuses": [ended("app", 143)], "initContainerStatuses": [running("setup")],
        "conditions": [{"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"}],
    }));
    below.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let status = upper_status(&below, &upper_that_runs(), 0);
    assert_eq!(status.phase.as_deref(), Some("Running"), "it has not ended yet");
    assert_eq!(exit_code(app(&status)), Some(143));
    assert_eq!(exit_code(&status.init_container_statuses.as_ref().unwrap()[0]), None);
    assert_eq!(condition(&status, "ContainersReady").unwrap().0, "False");
}

#[test]
fn liqo_1194_a_pod_on_an_unreachable_lower_node_is_not_ready() {
    let ready = |ready: serde_json::Value| {
        let conditions = json!([{"type": "ContainersReady", "status": "True"}, ready]);
        let below = lower(
            json!({"phase": "Running", "containerStatuses": [running("app")], "conditions": conditions}),
        );
        let status = upper_status(&below, &upper_that_runs(), 0);
        let (status, reason, _) = condition(&status, "ContainersReady").unwrap();
        (status.to_owned(), reason.map(str::to_owned))
    };
    let told = |reason: &str| ("False".to_owned(), Some(reason.to_owned()));
    // What the node controller leaves: the pod is not Ready, and no kubelet updates the containers.
    assert_eq!(ready(json!({"type": "Ready", "status": "False"})), told("LowerPodNotReady"));
    assert_eq!(ready(json!({"type": "Ready", "status": "False", "reason": "NodeLost"})), told("NodeLost"));
    let good = ("True".to_owned(), None);
    assert_eq!(ready(json!({"type": "Ready", "status": "True"})), good);
    let gate = json!({"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"});
    assert_eq!(ready(gate), good, "an injected gate does not belong to the upper pod");
}

#[test]
fn a_replaced_lower_pod_counts_as_a_restart() {
    let mut again = running("app");
    again["restartCount"] = json!(1);
    let below = lower(
        json!({"phase": "Running", "containerStatuses": [again], "initContainerStatuses": [ended("setup", 0)]}),
    );
    assert_eq!(app(&upper_status(&below, &upper(json!({})), 2)).restart_count, 3);
    assert_eq!(
        upper_status(&below, &upper(json!({})), 2).init_container_statuses.unwrap()[0].restart_count,
        2
    );
    assert_eq!(app(&upper_status(&below, &upper_that_runs(), 2)).restart_count, 5, "it never counts back");
    assert_eq!(
        app(&upper_status(&below, &upper_that_runs(), 0)).restart_count,
        1,
        "a kubelet may, in the same pod"
    );
    assert_eq!(app(&upper_status(&below, &upper(json!({})), -3)).restart_count, 1);
    assert_eq!(app(&upper_status(&below, &upper(json!({})), i32::MAX)).restart_count, i32::MAX);
}

#[test]
fn admiralty_7_an_upper_pod_is_not_ready_while_its_lower_pod_is_replaced() {
    let status =
        upper_status(&lower(json!({"phase": "Pending", "qosClass": "Burstable"})), &upper_that_runs(), 1);
    assert_eq!(
        status.phase.as_deref(),
        Some("Running"),
        "there is no way back, and the core would refuse it"
    );
    let app = app(&status);
    assert!(!app.ready && app.started == Some(false) && app.restart_count == 5);
    let waiting = app.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("PodInitializing"));
    assert_eq!(
        exit_code(&status.init_container_statuses.as_ref().unwrap()[0]),
        None,
        "it begins from the start"
    );
    assert_eq!(status.qos_class, None, "this is not a kubelet's report");

    let creating = json!({"phase": "Pending", "containerStatuses": [{
        "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}},
    }]});
    let replaced = upper_status(&lower(creating.clone()), &upper_that_runs(), 1);
    assert_eq!(replaced.phase.as_deref(), Some("Running"), "nor once its kubelet has begun");
    let same = upper_status(&lower(creating), &upper_that_runs(), 0);
    assert_eq!(
        same.phase.as_deref(),
        Some("Pending"),
        "but a kubelet that begins again with the same pod is believed"
    );
}

#[test]
fn a_deleted_running_lower_pod_has_failed() {
    let last = upper_status(
        &lower(
            json!({"phase": "Running", "qosClass": "Burstable", "podIP": "10.1.0.9", "containerStatuses": [running("app")],
            "conditions": [{"type": "ContainersReady", "status": "True"}]}),
        ),
        &upper_that_runs(),
        0,
    );
    for (status, ip) in [
        (failed_status(&upper_that_runs(), Some(&last), POD_DELETED, "somebody deleted it"), "10.1.0.9"),
        (failed_status(&upper_that_runs(), None, POD_DELETED, "somebody deleted it"), "10.1.0.5"),
    ] {
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("LowerPodDeleted"));
        assert_eq!(status.message.as_deref(), Some("somebody deleted it"));
        let app = app(&status);
        assert_eq!((exit_code(app), app.ready, app.started), (Some(137), false, Some(false)));
        let end = app.state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(end.reason.as_deref(), Some("ContainerStatusUnknown"));
        assert!(end.started_at.is_some(), "since when it ran is known");
        assert_eq!(status.pod_ip.as_deref(), Some(ip));
        assert_eq!(condition(&status, "ContainersReady"), None, "which was of another time");
        assert_eq!(condition(&status, "Ready"), None);
    }
    let drained = failed_status(&upper_that_runs(), None, POD_DELETED, "");
    assert_eq!(condition(&drained, "DisruptionTarget"), Some(("True", Some("Drain"), None)), "Jobs go by it");
    assert_eq!(exit_code(&drained.init_container_statuses.unwrap()[0]), Some(0), "what ended well did");
}

#[test]
fn a_lower_pod_on_a_lost_node_has_failed() {
    let status = failed_status(&upper_that_runs(), None, NODE_LOST, &"x".repeat(10_000));
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("LowerNodeLost")));
    assert!(status.message.unwrap().len() <= 4096);
}

#[test]
fn liqo_1804_and_3096_an_ended_pod_stays_ended_without_its_lower_pod() {
    let last = upper_status(
        &lower(json!({"phase": "Succeeded", "containerStatuses": [ended("app", 0)]})),
        &upper_that_runs(),
        0,
    );
    let taken = failed_status(&upper_that_runs(), Some(&last), POD_DELETED, "somebody deleted it");
    assert_eq!(
        (taken.phase.as_deref(), taken.reason.as_deref()),
        (Some("Succeeded"), None),
        "as it was told last"
    );
    assert_eq!(exit_code(app(&taken)), Some(0));

    let there = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory", "containerStatuses": [ended("app", 137)]});
    let kept = failed_status(&upper(there), None, POD_DELETED, "somebody deleted it");
    assert_eq!(
        (kept.phase.as_deref(), kept.reason.as_deref()),
        (Some("Failed"), Some("Evicted")),
        "as it is above"
    );
    assert_eq!(kept.message.as_deref(), Some("low on memory"));
}

#[test]
fn liqo_598_and_604_no_container_of_a_lost_pod_is_running() {
    // Its upper deadline passed, and the lower pod disappeared before it was seen to stop.
    let there =
        json!({"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": [running("app")]});
    let status = failed_status(&upper(there), None, POD_DELETED, "");
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(exit_code(app(&status)), Some(137), "or the upper pod would wait for it for ever");

    let never = failed_status(&upper(json!({"phase": "Pending"})), None, POD_DELETED, "gone");
    assert_eq!(
        (never.phase.as_deref(), &never.container_statuses),
        (Some("Failed"), &None),
        "it never had any"
    );
    let waiting = json!({"phase": "Pending", "containerStatuses": [{
        "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}},
    }]});
    assert_eq!(exit_code(app(&failed_status(&upper(waiting), None, POD_DELETED, "gone"))), Some(137));
}

#[test]
fn a_replacement_is_detected_without_the_annotation() {
    let new = lower(json!({"phase": "Pending"}));
    let status = upper_status(&new, &upper_that_runs(), 0);
    assert_eq!((status.phase.as_deref(), app(&status).ready), (Some("Running"), false));
    let over = upper(json!({"phase": "Succeeded", "containerStatuses": [ended("app", 0)]}));
    assert_eq!(
        upper_status(&new, &over, 0).container_statuses,
        None,
        "nothing of a pod that has ended waits"
    );
}

#[test]
fn the_reason_of_containers_ready_is_kept() {
    let below = lower(json!({"phase": "Running", "containerStatuses": [running("app")], "conditions": [
        {"type": "Ready", "status": "False", "reason": "NodeLost"},
        {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady"},
    ]}));
    let status = upper_status(&below, &upper_that_runs(), 0);
    assert_eq!(condition(&status, "ContainersReady"), Some(("False", Some("ContainersNotReady"), None)));
}

#[test]
fn a_container_that_never_started_stays_waiting() {
    let there = json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [{
        "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}},
    }]});
    let status = failed_status(&upper(there), None, POD_DELETED, "gone");
    assert_eq!((exit_code(app(&status)), app(&status).ready), (None, false));
}

#[test]
fn a_pod_has_not_ended_while_an_injected_container_runs() {
    let still = "virtual-kubelet.io/StillRunning";
    let below = |app, proxy| {
        let status = json!({"phase": "Running", "containerStatuses": [app, proxy], "initContainerStatuses": [ended("setup", 0)]});
        upper_status(&lower(status), &upper_that_runs(), 0)
    };
    let words = "containers added by the lower cluster are still running: [proxy]";
    let stopping = below(ended("app", 143), running("proxy"));
    assert_eq!(condition(&stopping, still), Some(("True", Some("AddedBelow"), Some(words))));
    assert_eq!(stopping.container_statuses.as_ref().map(Vec::len), Some(1), "it is not shown all the same");
    assert_eq!(
        condition(&below(running("app"), running("proxy")), still),
        None,
        "the pod shows that it runs"
    );
    assert_eq!(condition(&below(ended("app", 143), ended("proxy", 0)), still), None);
}

/// A pod that disappears from the watch may have lost its labels.
#[test]
fn a_pod_has_stopped_when_none_of_its_containers_can_run() {
    let stopped = |status| has_stopped(&lower(status));
    assert!(stopped(json!({"phase": "Failed"})));
    assert!(stopped(json!({"phase": "Running", "containerStatuses": [ended("app", 0), ended("proxy", 0)]})));
    assert!(!stopped(json!({"phase": "Running", "containerStatuses": [ended("app", 0), running("proxy")]})));
    assert!(!stopped(json!({"phase": "Pending"})), "it may start");
}
