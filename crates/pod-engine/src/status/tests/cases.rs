//! Statuses that a real kubelet 1.36.4 wrote.

use super::*;

const UNREADY: &str = "containers with unready status: ";

#[test]
fn one_container_that_crashes_again_and_again_beside_a_good_one() {
    let mut fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("b", RecordState::Running)
        .record("a", RecordState::Exited(1));
    fixture.step();
    fixture.add_record("a", RecordState::Exited(3));
    fixture.trouble_again("a", "CrashLoopBackOff");
    let status = fixture.step();
    assert_eq!(phase(&status), "Running");
    assert_eq!(
        (state(&status, "a").as_str(), last(&status, "a").as_str()),
        ("waiting CrashLoopBackOff", "ended 3 Error")
    );
    assert_eq!(state(&status, "b"), "running");
    let message = format!("{UNREADY}[a]");
    assert_eq!(brief(&status, "Ready"), ("False", "ContainersNotReady", message.as_str()));
    assert_eq!(brief(&status, "ContainersReady"), ("False", "ContainersNotReady", message.as_str()));
    assert_eq!(container_status(&status, "a").restart_count, 1);
    assert_eq!(container_status(&status, "a").container_id.as_deref(), Some("containerd://a-1"));
}

#[test]
fn a_command_that_is_not_in_the_image() {
    let mut fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("b", RecordState::Running)
        .record("a", RecordState::Refused);
    fixture.trouble_again("a", "RunContainerError");
    let status = fixture.step();
    assert_eq!(phase(&status), "Running");
    assert_eq!(state(&status, "a"), "waiting RunContainerError");
    assert_eq!(last(&status, "a"), "ended 128 StartError");
    let ended =
        container_status(&status, "a").last_state.clone().and_then(|state| state.terminated).expect("an end");
    assert_eq!(ended.started_at.expect("a time").0, Timestamp::UNIX_EPOCH, "it never started");
    fixture.add_record("a", RecordState::Refused);
    assert_eq!(container_status(&fixture.step(), "a").restart_count, 1, "the count grows");
}

#[test]
fn an_image_that_cannot_be_pulled_or_must_not_be() {
    for reason in ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"] {
        let status = fixture(two_containers("Always"))
            .sandbox()
            .record("b", RecordState::Running)
            .failure("a", reason)
            .compute();
        assert_eq!(phase(&status), "Pending", "{reason}");
        assert_eq!(state(&status, "a"), format!("waiting {reason}"));
        let waiting =
            container_status(&status, "a").state.clone().and_then(|state| state.waiting).expect("it waits");
        assert_eq!(waiting.message, Some(format!("{reason}: told")));
        assert_eq!(container_status(&status, "a").image, "one", "as the spec has it");
        assert_eq!(brief(&status, "PodReadyToStartContainers"), ("True", "", ""));
    }
}

#[test]
fn one_ends_well_and_one_badly_under_never() {
    let mut fixture = fixture(two_containers("Never"))
        .sandbox()
        .record("a", RecordState::Exited(0))
        .record("b", RecordState::Exited(5));
    fixture.step();
    fixture.stop_sandboxes();
    fixture.terminated = true;
    let status = terminated_status(&fixture.pod, &fixture.compute());
    assert_eq!(phase(&status), "Failed");
    assert_eq!(
        (state(&status, "a").as_str(), state(&status, "b").as_str()),
        ("ended 0 Completed", "ended 5 Error")
    );
    for kind in ["Ready", "ContainersReady"] {
        assert_eq!(brief(&status, kind), ("False", "PodFailed", ""), "{kind}");
    }
    assert_eq!(brief(&status, "PodReadyToStartContainers"), ("False", "", ""));
    assert_eq!(brief(&status, "Initialized"), ("True", "", ""));
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.5"), "it keeps its address");
}

#[test]
fn an_init_container_that_fails_under_never() {
    let mut spec = two_containers("Never");
    spec["initContainers"] = json!([{"name": "first"}, {"name": "second"}]);
    let mut fixture = fixture(spec).sandbox().record("first", RecordState::Exited(9));
    fixture.step();
    fixture.stop_sandboxes();
    fixture.terminated = true;
    let status = terminated_status(&fixture.pod, &fixture.compute());
    assert_eq!(phase(&status), "Failed");
    assert_eq!(state(&status, "first"), "ended 9 Error");
    for name in ["a", "b", "second"] {
        assert_eq!(state(&status, name), "waiting PodInitializing", "{name}");
    }
    let message = "containers with incomplete status: [first second]";
    assert_eq!(brief(&status, "Initialized"), ("False", "ContainersNotInitialized", message));
    assert_eq!(brief(&status, "Ready"), ("False", "PodFailed", ""));
}

#[test]
fn a_container_that_takes_too_much_memory() {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
    let status = fixture(spec).sandbox().record("a", RecordState::Exited(137)).compute();
    assert_eq!((phase(&status), state(&status, "a").as_str()), ("Failed", "ended 137 OOMKilled"));
}

#[test]
fn liveness_that_keeps_failing_ends_in_back_off_also_after_a_good_exit() {
    let mut fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("b", RecordState::Running)
        .record("a", RecordState::Exited(0));
    fixture.add_record("a", RecordState::Exited(0));
    fixture.trouble_again("a", "CrashLoopBackOff");
    let status = fixture.compute();
    assert_eq!(phase(&status), "Running");
    assert_eq!(state(&status, "a"), "waiting CrashLoopBackOff");
    assert_eq!(last(&status, "a"), "ended 0 Completed");
    assert_eq!(container_status(&status, "a").restart_count, 1);
}

#[test]
fn a_sidecar_that_runs_and_an_init_container_that_is_done() {
    let mut spec = two_containers("Always");
    spec["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}, {"name": "setup"}]);
    let fixture =
        fixture(spec).sandbox().record("proxy", RecordState::Running).record("setup", RecordState::Exited(0));
    let status = fixture.record("a", RecordState::Running).record("b", RecordState::Running).compute();
    let flags = |name: &str| (container_status(&status, name).ready, container_status(&status, name).started);
    assert_eq!(flags("proxy"), (true, Some(true)));
    assert_eq!(flags("setup"), (true, Some(false)));
    assert_eq!(flags("a"), (true, Some(true)));
    assert_eq!(brief(&status, "Initialized"), ("True", "", ""));
    assert_eq!(brief(&status, "Ready"), ("True", "", ""));
    assert_eq!(phase(&status), "Running");
}

#[test]
fn all_conditions_are_always_there_in_the_kubelets_order() {
    let new = fixture(two_containers("Always")).compute();
    let running = fixture(two_containers("Always"))
        .sandbox()
        .record("a", RecordState::Running)
        .record("b", RecordState::Running)
        .compute();
    for status in [new, running] {
        let kinds: Vec<&str> = status.conditions.iter().flatten().map(|one| one.type_.as_str()).collect();
        let expected =
            ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        assert_eq!(kinds, expected);
        assert_eq!(brief(&status, "PodScheduled"), ("True", "", ""));
        assert!(status.conditions.iter().flatten().all(|one| one.observed_generation == Some(1)));
    }
}
