//! Container statuses from the first wait to the last exit, and probe results.

use super::*;

fn ran(name: &str, count: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": true, "started": true, "restartCount": count,
           "containerID": format!("containerd://{name}-0"), "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}}})
}

fn done(name: &str, count: i32, code: i32) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "started": false, "restartCount": count,
           "containerID": format!("containerd://{name}-old"), "state": {"terminated": {"exitCode": code, "reason": "Error"}}})
}

#[test]
fn a_new_pod_waits_for_what_comes_first() {
    let plain = fixture(two_containers("Always")).compute();
    assert_eq!((phase(&plain), state(&plain, "a").as_str()), ("Pending", "waiting ContainerCreating"));
    let mut spec = two_containers("Always");
    spec["initContainers"] = json!([{"name": "setup", "image": "zero"}]);
    let staged = fixture(spec).compute();
    assert_eq!(state(&staged, "a"), "waiting PodInitializing");
    assert_eq!(state(&staged, "setup"), "waiting PodInitializing");
    let status = container_status(&staged, "setup");
    assert_eq!((status.image.as_str(), status.image_id.as_str(), status.started), ("zero", "", Some(false)));
    assert_eq!((&status.container_id, &status.resources), (&None, &None), "nothing of it is there yet");
    let message = "containers with incomplete status: [setup]";
    assert_eq!(brief(&staged, "Initialized"), ("False", "ContainersNotInitialized", message));
    assert_eq!(brief(&staged, "Ready").2, "containers with unready status: [a b]");
    assert_eq!(brief(&staged, "PodReadyToStartContainers"), ("False", "", ""));
}

#[test]
fn a_created_container_waits_without_a_reason() {
    let status = fixture(two_containers("Always")).sandbox().record("a", RecordState::Created).compute();
    assert_eq!(state(&status, "a"), "waiting");
    assert_eq!(container_status(&status, "a").container_id.as_deref(), Some("containerd://a-0"));
    let troubled = fixture(two_containers("Always"))
        .sandbox()
        .record("a", RecordState::Created)
        .failure("a", "CreateContainerError")
        .compute();
    assert_eq!(state(&troubled, "a"), "waiting CreateContainerError");
}

#[test]
fn a_running_container_that_vanished_has_ended_unseen() {
    let before = json!({"phase": "Running", "containerStatuses": [ran("a", 2), ran("b", 0)]});
    let status = fixture(two_containers("Always")).previously(before.clone()).compute();
    assert_eq!(phase(&status), "Running", "not Pending: it has run");
    assert_eq!(state(&status, "a"), "waiting ContainerCreating");
    assert_eq!(last(&status, "a"), "ended 137 ContainerStatusUnknown");
    assert_eq!(
        (container_status(&status, "a").restart_count, container_status(&status, "b").restart_count),
        (3, 1)
    );
    let ended =
        container_status(&status, "a").last_state.clone().and_then(|state| state.terminated).expect("an end");
    let message =
        "The container could not be located when the pod was deleted.  The container used to be Running";
    assert_eq!(ended.message.as_deref(), Some(message));
    let mut deleted = fixture(two_containers("Always")).previously(before);
    deleted.pod.metadata.deletion_timestamp = Some(whole_seconds(time("00:00:09")));
    assert_eq!(container_status(&deleted.compute(), "a").restart_count, 2, "a deleted pod does not restart");
}

#[test]
fn what_was_seen_to_end_stays_ended_when_the_runtime_forgets_it() {
    let before = json!({"phase": "Running", "containerStatuses": [done("a", 5, 1), done("b", 5, 1)]});
    let status = fixture(two_containers("Always")).previously(before.clone()).compute();
    assert_eq!(
        (state(&status, "a").as_str(), container_status(&status, "a").restart_count),
        ("ended 1 Error", 5)
    );
    // The new instance, whose count the runtime lost, continues from there.
    let again = fixture(two_containers("Always"))
        .previously(before)
        .sandbox()
        .record("a", RecordState::Running)
        .compute();
    assert_eq!((state(&again, "a").as_str(), last(&again, "a").as_str()), ("running", "ended 1 Error"));
    assert_eq!(container_status(&again, "a").restart_count, 6);
}

#[test]
fn a_container_in_an_unknown_state_has_ended_if_it_ran() {
    let before = json!({"phase": "Running", "containerStatuses": [ran("a", 0)]});
    let status = fixture(two_containers("Always"))
        .previously(before)
        .sandbox()
        .record("a", RecordState::Unknown)
        .compute();
    assert_eq!(state(&status, "a"), "ended 137 ContainerStatusUnknown");
    assert_eq!(container_status(&status, "a").restart_count, 1);
    let new = fixture(two_containers("Always")).sandbox().record("a", RecordState::Unknown).compute();
    assert_eq!(state(&new, "a"), "waiting");
}

#[test]
fn a_lost_init_container_of_a_pod_that_runs_has_done_its_work() {
    let mut spec = two_containers("Always");
    spec["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}, {"name": "setup"}]);
    let status =
        fixture(spec).sandbox().record("a", RecordState::Running).record("b", RecordState::Running).compute();
    assert_eq!(state(&status, "setup"), "ended 0 Completed");
    assert!(container_status(&status, "setup").ready);
    assert_eq!(state(&status, "proxy"), "waiting PodInitializing", "a sidecar is started again");
}

#[test]
fn the_one_before_the_newest_is_the_last_state() {
    let fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("a", RecordState::Exited(1))
        .record("a", RecordState::Exited(2));
    let status = fixture.record("a", RecordState::Running).compute();
    assert_eq!((state(&status, "a").as_str(), last(&status, "a").as_str()), ("running", "ended 2 Error"));
    assert_eq!(container_status(&status, "a").restart_count, 2);
}

#[test]
fn a_trouble_counts_only_while_the_container_is_to_be_started() {
    let troubled = |policy: &str, now: RecordState| {
        let fixture =
            fixture(two_containers(policy)).sandbox().record("b", RecordState::Running).record("a", now);
        fixture.failure("a", "CrashLoopBackOff")
    };
    assert_eq!(state(&troubled("Always", RecordState::Running).compute(), "a"), "running");
    assert_eq!(state(&troubled("Never", RecordState::Exited(1)).compute(), "a"), "ended 1 Error");
    assert_eq!(state(&troubled("OnFailure", RecordState::Exited(0)).compute(), "a"), "ended 0 Completed");
    assert_eq!(
        state(&troubled("OnFailure", RecordState::Exited(1)).compute(), "a"),
        "waiting CrashLoopBackOff"
    );
    let mut deleted = troubled("Always", RecordState::Exited(1));
    deleted.pod.metadata.deletion_timestamp = Some(whole_seconds(time("00:00:09")));
    assert_eq!(state(&deleted.compute(), "a"), "ended 1 Error", "a deleted pod starts nothing");
}

#[test]
fn a_failed_post_start_hook_is_why_the_container_waits() {
    let fixture = fixture(two_containers("Always"))
        .sandbox()
        .record("b", RecordState::Running)
        .record("a", RecordState::Exited(137));
    let status = fixture.failure("a", "PostStartHookError").compute();
    assert_eq!(state(&status, "a"), "waiting PostStartHookError");
    assert_eq!(last(&status, "a"), "ended 137 OOMKilled");
}

#[test]
fn what_has_ended_for_good_does_not_come_back() {
    let before = json!({"phase": "Running", "containerStatuses": [done("a", 0, 1), ran("b", 0)]});
    let fixture = fixture(two_containers("Never"))
        .previously(before)
        .sandbox()
        .record("a", RecordState::Running)
        .record("b", RecordState::Running);
    assert_eq!(Some(fixture.compute()), fixture.previous, "the status stays as it was");
}

#[test]
fn probes_decide_who_has_started_and_who_is_ready() {
    let probe = json!({"exec": {"command": ["true"]}});
    let spec = json!({"restartPolicy": "Always",
        "initContainers": [{"name": "proxy", "restartPolicy": "Always", "readinessProbe": probe, "startupProbe": probe}],
        "containers": [{"name": "a", "readinessProbe": probe, "startupProbe": probe}, {"name": "b"}]});
    let make = || {
        let fixture = fixture(spec.clone()).sandbox().record("proxy", RecordState::Running);
        fixture.record("a", RecordState::Running).record("b", RecordState::Running)
    };
    let flags = |status: &PodStatus, name: &str| {
        (container_status(status, name).started, container_status(status, name).ready)
    };
    let unseen = make().compute();
    assert_eq!(flags(&unseen, "a"), (Some(false), false));
    assert_eq!(flags(&unseen, "b"), (Some(true), true), "without probes it is enough to run");
    assert_eq!(brief(&unseen, "ContainersReady").2, "containers with unready status: [proxy a]");
    let waiting = make().result("a-0", ProbeKind::Startup, ProbeResult::Unknown).result(
        "a-0",
        ProbeKind::Readiness,
        ProbeResult::Success,
    );
    assert_eq!(flags(&waiting.compute(), "a"), (Some(false), false), "it has not started");
    let started = make().result("a-0", ProbeKind::Startup, ProbeResult::Success).result(
        "a-0",
        ProbeKind::Readiness,
        ProbeResult::Failure,
    );
    assert_eq!(flags(&started.compute(), "a"), (Some(true), false));
    let ready = started.result("a-0", ProbeKind::Readiness, ProbeResult::Success);
    assert_eq!(flags(&ready.compute(), "a"), (Some(true), true));
    let all = ready.result("proxy-0", ProbeKind::Startup, ProbeResult::Success).result(
        "proxy-0",
        ProbeKind::Readiness,
        ProbeResult::Success,
    );
    assert_eq!(brief(&all.compute(), "Ready"), ("True", "", ""));
}

#[test]
fn what_was_ready_before_this_process_is_ready_until_it_is_probed() {
    let probe = json!({"exec": {"command": ["true"]}});
    let spec = json!({"restartPolicy": "Always", "containers": [{"name": "a", "readinessProbe": probe}]});
    let mut fixture = fixture(spec).sandbox().record("a", RecordState::Running);
    fixture.pod.status =
        serde_json::from_value(json!({"phase": "Running", "containerStatuses": [ran("a", 0)],
        "conditions": [{"type": "Ready", "status": "True"}]}))
        .expect("a status");
    fixture.since = Some(time("00:00:30"));
    assert!(container_status(&fixture.compute(), "a").ready);
    fixture.since = Some(time("00:00:05"));
    assert!(!container_status(&fixture.compute(), "a").ready, "this process has started it");
    fixture.since = Some(time("00:00:30"));
    let mut unready = fixture.result("a-0", ProbeKind::Readiness, ProbeResult::Failure);
    assert!(!container_status(&unready.compute(), "a").ready, "it was probed");
    unready.probe_results.remove("a-0", ProbeKind::Readiness);
    unready.pod.status.as_mut().expect("a status").conditions = None;
    assert!(!container_status(&unready.compute(), "a").ready, "it was not ready");
}

#[test]
fn readiness_gates_are_asked_one_by_one() {
    let mut spec = two_containers("Always");
    spec["readinessGates"] = json!([{"conditionType": "lb/one"}, {"conditionType": "lb/two"}]);
    let mut fixture =
        fixture(spec).sandbox().record("a", RecordState::Running).record("b", RecordState::Running);
    let set = |fixture: &mut StatusFixture, conditions: Value| {
        let status = fixture.pod.status.get_or_insert_default();
        status.conditions = serde_json::from_value(conditions).expect("conditions");
    };
    set(&mut fixture, json!([{"type": "lb/one", "status": "Unknown"}]));
    let closed = fixture.compute();
    let message = "the status of pod readiness gate \"lb/one\" is not \"True\", but Unknown, \
                   corresponding condition of pod readiness gate \"lb/two\" does not exist.";
    assert_eq!(brief(&closed, "Ready"), ("False", "ReadinessGatesNotReady", message));
    assert_eq!(brief(&closed, "ContainersReady"), ("True", "", ""));
    set(&mut fixture, json!([{"type": "lb/one", "status": "True"}, {"type": "lb/two", "status": "True"}]));
    assert_eq!(brief(&fixture.compute(), "Ready"), ("True", "", ""));
}

#[test]
fn a_pod_stays_initialized_in_a_new_sandbox_and_is_pending_again() {
    let mut spec = two_containers("Always");
    spec["initContainers"] = json!([{"name": "setup"}]);
    let mut fixture = fixture(spec).sandbox().record("setup", RecordState::Exited(0));
    fixture.add_record("a", RecordState::Running);
    fixture.add_record("b", RecordState::Running);
    assert_eq!(phase(&fixture.step()), "Running");
    fixture.change_record("a", RecordState::Exited(137));
    fixture.change_record("b", RecordState::Exited(137));
    fixture.sandbox_again();
    fixture.add_record("setup", RecordState::Running);
    let again = fixture.step();
    assert_eq!(phase(&again), "Pending", "as the kubelet says it");
    assert_eq!(brief(&again, "Initialized").0, "True");
}

#[test]
fn addresses_follow_the_nodes_family_and_stay_when_the_sandbox_is_gone() {
    let ips =
        |status: &PodStatus| status.pod_ips.iter().flatten().map(|one| one.ip.clone()).collect::<Vec<_>>();
    let mut fixture = fixture(two_containers("Always")).sandbox().record("a", RecordState::Running);
    let all = ["fd00::1", "fd00::2", "10.1.0.5", "10.1.0.6"];
    fixture.snapshot.sandboxes[0].ips = all.iter().map(|ip| ip.parse().expect("an address")).collect();
    assert_eq!(ips(&fixture.compute()), ["10.1.0.5", "fd00::1"]);
    fixture.node_ips = vec!["fd00::9".parse().expect("an address"), "10.0.0.9".parse().expect("an address")];
    let status = fixture.step();
    assert_eq!(ips(&status), ["fd00::1", "10.1.0.5"]);
    assert_eq!(status.host_ips.iter().flatten().count(), 2);
    assert_eq!(status.host_ip.as_deref(), Some("fd00::9"));
    fixture.stop_sandboxes();
    assert_eq!(ips(&fixture.compute()), ["fd00::1", "10.1.0.5"]);
    fixture.sandbox_again();
    assert_eq!(ips(&fixture.compute()), ["10.1.0.5"]);
}

#[test]
fn a_pod_on_the_hosts_network_has_the_nodes_addresses() {
    let mut spec = two_containers("Always");
    spec["hostNetwork"] = json!(true);
    let mut fixture = fixture(spec).sandbox();
    fixture.snapshot.sandboxes[0].host_network = true;
    fixture.snapshot.sandboxes[0].ips.clear();
    fixture.node_ips.push("fd00::9".parse().expect("an address"));
    let status = fixture.compute();
    assert_eq!(
        status.pod_ips.iter().flatten().map(|one| one.ip.as_str()).collect::<Vec<_>>(),
        ["10.0.0.1", "fd00::9"]
    );
    assert_eq!(brief(&status, "PodReadyToStartContainers").0, "True", "without an address of its own");
    fixture.snapshot.sandboxes[0].host_network = false;
    assert_eq!(brief(&fixture.compute(), "PodReadyToStartContainers").0, "False", "the wrong network");
}

#[test]
fn a_sandbox_that_cannot_be_used_is_none() {
    let usable = |change: fn(&mut Snapshot)| {
        let mut fixture = fixture(two_containers("Always")).sandbox();
        change(&mut fixture.snapshot);
        brief(&fixture.compute(), "PodReadyToStartContainers").0 == "True"
    };
    assert!(usable(|_| ()));
    assert!(!usable(|snapshot| snapshot.sandboxes.clear()));
    assert!(!usable(|snapshot| snapshot.sandboxes[0].ips.clear()));
    assert!(!usable(|snapshot| snapshot.sandboxes[0].state = SandboxState::NotReady));
    assert!(!usable(|snapshot| snapshot.sandboxes.push(snapshot.sandboxes[0].clone())));
}

#[test]
fn a_container_that_asks_for_it_restarts_the_whole_pod() {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "restartPolicy": "Never", "restartPolicyRules": rule}, {"name": "b"}]});
    let mut fixture =
        fixture(spec).sandbox().record("a", RecordState::Running).record("b", RecordState::Running);
    assert_eq!(brief(&fixture.step(), "AllContainersRestarting"), ("False", "", ""));
    fixture.change_record("a", RecordState::Exited(42));
    let reported_status =
        ("True", "RestartAllContainersStarted", "container exited with restart policy rule");
    let asked = fixture.step();
    assert_eq!((phase(&asked), brief(&asked, "AllContainersRestarting")), ("Running", reported_status));
    // They are stopped and taken away.
    fixture.change_record("b", RecordState::Exited(137));
    assert_eq!(phase(&fixture.step()), "Running");
    fixture.snapshot.containers.clear();
    let empty = fixture.step();
    assert_eq!(phase(&empty), "Running");
    for name in ["a", "b"] {
        assert_eq!(state(&empty, name), "waiting RestartingAllContainers", "{name}");
        assert_eq!(last(&empty, name), "ended 137 RestartingAllContainers", "{name}");
        assert_eq!(container_status(&empty, name).restart_count, 1, "{name}");
    }
    assert_eq!(brief(&empty, "AllContainersRestarting"), ("False", "", ""));
    fixture.add_record("a", RecordState::Running);
    fixture.add_record("b", RecordState::Running);
    let again = fixture.step();
    assert_eq!((phase(&again), container_status(&again, "a").restart_count), ("Running", 1));
    fixture.change_record("a", RecordState::Exited(0));
    fixture.change_record("b", RecordState::Exited(0));
    assert_eq!(brief(&fixture.step(), "AllContainersRestarting"), ("False", "PodCompleted", ""));
}
