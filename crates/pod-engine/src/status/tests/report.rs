//! The end of a pod, and when it is reported.

use super::*;

fn waits(name: &str) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}})
}

fn ended(name: &str, code: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": code, "reason": "Error"}}})
}

fn parse(status: Value) -> PodStatus {
    serde_json::from_value(status).expect("a status")
}

#[test]
fn what_is_missing_at_the_end_has_failed() {
    let pod = fixture(two_containers("Always")).pod;
    let status = terminated_status(
        &pod,
        &parse(json!({"phase": "Pending", "containerStatuses": [waits("a"), ended("b", 0)]})),
    );
    assert_eq!(phase(&status), "Failed");
    assert_eq!(state(&status, "a"), "ended 137 ContainerStatusUnknown");
    let end =
        container_status(&status, "a").state.clone().and_then(|state| state.terminated).expect("an end");
    assert_eq!(
        end.message.as_deref(),
        Some("The container could not be located when the pod was terminated")
    );
    assert_eq!(state(&status, "b"), "ended 0 Error", "what is known stays");
    let over = terminated_status(
        &pod,
        &parse(json!({"phase": "Succeeded", "containerStatuses": [ended("a", 0), ended("b", 0)]})),
    );
    assert_eq!(phase(&over), "Succeeded");
}

#[test]
fn a_pod_that_never_got_to_its_containers_failed_in_its_initialisation() {
    let mut spec = two_containers("Always");
    spec["initContainers"] = json!([{"name": "x"}, {"name": "y"}, {"name": "z"}]);
    let mut pod = fixture(spec).pod;
    let mut settle = |inits: [Value; 3]| {
        let status = json!({"phase": "Pending", "initContainerStatuses": inits, "containerStatuses": [waits("a"), waits("b")]});
        pod.status = Some(parse(status));
        terminated_status(&pod, &pod.status.clone().expect("a status"))
    };
    let states = |status: &PodStatus| {
        ["x", "y", "z", "a"].map(|name| state(status, name).split(' ').take(2).collect::<Vec<_>>().join(" "))
    };
    let none = settle([waits("x"), waits("y"), waits("z")]);
    assert_eq!(
        states(&none),
        ["ended 137", "waiting PodInitializing", "waiting PodInitializing", "waiting PodInitializing"]
    );
    let second = settle([ended("x", 0), ended("y", 1), waits("z")]);
    assert_eq!(states(&second), ["ended 0", "ended 1", "waiting PodInitializing", "waiting PodInitializing"]);
    let stopped = json!({"phase": "Pending", "initContainerStatuses": [ended("x", 0), ended("y", 0), ended("z", 0)],
        "containerStatuses": [waits("a"), waits("b")]});
    let all = settle([ended("x", 0), ended("y", 0), ended("z", 0)]);
    assert_eq!(states(&all), ["ended 0", "ended 0", "ended 0", "ended 137"], "the regular ones were to run");
    pod.status = None;
    let stopped = terminated_status(&pod, &parse(stopped));
    assert_eq!(
        states(&stopped)[3],
        "waiting PodInitializing",
        "its end was only seen when the pod was stopped"
    );
}

#[test]
fn nobody_hears_of_the_end_while_something_may_run() {
    let mut fixture = fixture(two_containers("Never"))
        .sandbox()
        .record("a", RecordState::Running)
        .record("b", RecordState::Running);
    fixture.step();
    fixture.change_record("a", RecordState::Exited(0));
    fixture.change_record("b", RecordState::Exited(0));
    let known = fixture.step();
    assert_eq!(phase(&known), "Succeeded");
    let heard = fixture.pod.status.clone().expect("a status");
    assert_eq!(phase(&heard), "Running", "its sandbox is there");
    assert_eq!(brief(&heard, "ContainersReady"), ("False", "PodCompleted", ""));
    fixture.stop_sandboxes();
    fixture.terminated = true;
    fixture.step();
    let heard = fixture.pod.status.clone().expect("a status");
    assert_eq!(phase(&heard), "Succeeded");
    assert_eq!(brief(&heard, "Initialized"), ("True", "PodCompleted", ""));
    assert_eq!(brief(&heard, "Ready"), ("False", "PodCompleted", ""));
}

#[test]
fn nothing_that_has_ended_is_ready() {
    let ready = json!([{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]);
    let heard = reported_status(&parse(json!({"phase": "Failed", "conditions": ready})), None, false);
    assert_eq!(brief(&heard, "Ready"), ("False", "PodFailed", ""));
    assert_eq!(brief(&heard, "ContainersReady"), ("False", "PodFailed", ""));
}

#[test]
fn a_verdict_fails_the_pod_but_not_one_that_has_ended() {
    let deadline = FailureReason { reason: "DeadlineExceeded".to_owned(), message: "too long".to_owned() };
    let mut fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("a", RecordState::Running)
        .record("b", RecordState::Running);
    fixture.step();
    fixture.failed = Some(deadline.clone());
    let known = fixture.step();
    assert_eq!((phase(&known), known.reason.as_deref()), ("Failed", Some("DeadlineExceeded")));
    assert_eq!(brief(&known, "Ready"), ("False", "PodFailed", ""));
    let heard = fixture.pod.status.clone().expect("a status");
    assert_eq!((phase(&heard), heard.reason.as_deref()), ("Running", None), "it runs still");
    fixture.change_record("a", RecordState::Exited(0));
    fixture.change_record("b", RecordState::Exited(0));
    fixture.stop_sandboxes();
    fixture.terminated = true;
    fixture.step();
    let heard = fixture.pod.status.clone().expect("a status");
    assert_eq!((phase(&heard), heard.message.as_deref()), ("Failed", Some("too long")));

    let mut done = super::fixture(two_containers("Never"));
    done.pod.status =
        Some(parse(json!({"phase": "Succeeded", "containerStatuses": [ended("a", 0), ended("b", 0)]})));
    done.failed = Some(deadline);
    let status = done.compute();
    assert_eq!((phase(&status), status.reason.as_deref()), ("Succeeded", None));
}

#[test]
fn a_final_phase_stays_whoever_has_seen_it() {
    for (there, before, expected) in [
        ("Failed", "Running", "Failed"),
        ("Running", "Succeeded", "Succeeded"),
        ("Succeeded", "Failed", "Succeeded"),
    ] {
        let mut fixture = fixture(two_containers("Always"))
            .sandbox()
            .record("a", RecordState::Running)
            .record("b", RecordState::Running);
        fixture.pod.status = Some(parse(json!({"phase": there})));
        let status = fixture.previously(json!({"phase": before})).compute();
        assert_eq!(phase(&status), expected, "the server has {there}, we had {before}");
    }
}

#[test]
fn reason_and_message_stay_as_long_as_the_phase() {
    let mut fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("a", RecordState::Running)
        .record("b", RecordState::Running);
    let before = json!({"phase": "Running", "reason": "because", "message": "of this"});
    fixture.previous = Some(parse(before));
    let status = fixture.compute();
    assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some("because"), Some("of this")));
    fixture.previous = Some(parse(json!({"phase": "Pending", "reason": "because"})));
    assert_eq!(fixture.compute().reason, None);
}

#[test]
fn times_move_only_with_what_they_are_about() {
    let mut fixture = fixture(two_containers("Always")).sandbox();
    let first = fixture.step();
    assert_eq!(first.start_time, Some(whole_seconds(time("00:00:10"))));
    fixture.now = time("00:01:00.7");
    fixture.add_record("a", RecordState::Running);
    fixture.add_record("b", RecordState::Running);
    let second = fixture.step();
    assert_eq!(second.start_time, first.start_time);
    let moved = |kind: &str| condition(&second, kind).last_transition_time.clone();
    assert_eq!(moved("Ready"), Some(whole_seconds(time("00:01:00"))));
    assert_eq!(moved("PodReadyToStartContainers"), Some(whole_seconds(time("00:00:10"))));
    fixture.now = time("00:02:00");
    assert_eq!(fixture.step(), second, "nothing happened");
}

#[test]
fn long_termination_messages_are_cut_at_a_character() {
    let mut fixture = fixture(two_containers("Never"))
        .sandbox()
        .record("a", RecordState::Exited(1))
        .record("b", RecordState::Exited(1));
    fixture.snapshot.containers[0].message = "é".repeat(5000);
    let status = fixture.compute();
    let end =
        container_status(&status, "b").state.clone().and_then(|state| state.terminated).expect("an end");
    assert_eq!(end.message.map(|message| message.len()), Some(6144), "12 KiB for two containers");
}
