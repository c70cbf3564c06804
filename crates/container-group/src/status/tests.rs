use serde_json::{Value, json};

use super::*;
use crate::backend::{ContainerState, GroupRef, ObservedContainer, Termination};

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn pod() -> Pod {
    let main = json!({"name": "web", "image": "web:1", "resources": {"requests": {"cpu": "1"}}});
    let init = json!({"name": "setup", "image": "setup:1"});
    let meta = json!({"name": "web", "namespace": "shop", "uid": "u1", "generation": 3});
    serde_json::from_value(json!({
        "metadata": meta,
        "spec": {"containers": [main, {"name": "log", "image": "log:1"}], "initContainers": [init]},
    }))
    .unwrap()
}

fn container(name: &str, state: ContainerState) -> ObservedContainer {
    ObservedContainer { name: name.to_owned(), state: Some(state), ..ObservedContainer::default() }
}

fn ended(code: i32) -> ContainerState {
    ContainerState::Terminated(Termination {
        exit_code: Some(code),
        started: Some(time(1)),
        finished: Some(time(5)),
        ..Termination::default()
    })
}

fn running() -> ContainerState {
    ContainerState::Running { started: Some(time(7)) }
}

fn group(state: GroupState) -> Observed {
    Observed { state: Some(state), created: Some(time(0)), ..Observed::new(GroupRef::new("eci-1", "vk-1")) }
}

/// A group whose containers all run.
fn running_group() -> Observed {
    Observed {
        addresses: Some(vec![
            "10.0.0.7".parse().unwrap(),
            "10.0.0.8".parse().unwrap(),
            "fd00::7".parse().unwrap(),
        ]),
        containers: Some(vec![container("web", running()), container("log", running())]),
        init_containers: Some(vec![container("setup", ended(0))]),
        ..group(GroupState::Running)
    }
}

fn compute(pod: Option<&Pod>, observed: Option<&Observed>, previous: Option<&PodStatus>) -> PodStatus {
    let node_ips = ["192.0.2.1".parse().unwrap()];
    pod_status(&StatusInput {
        pod,
        observed,
        previous,
        warning: Some("no stock in zone a"),
        is_resizing: false,
        node_ips: &node_ips,
        runtime: "eci",
        now: time(10),
    })
}

fn condition_of(status: &PodStatus, kind: &str) -> Value {
    let one = status.conditions.iter().flatten().find(|one| one.type_ == kind).expect(kind);
    json!([one.status, one.reason])
}

fn container_of<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find(|one| one.name == name).expect(name)
}

#[test]
fn a_pod_without_a_group_waits_and_says_why() {
    let status = compute(Some(&pod()), None, None);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.message.as_deref(), Some("no stock in zone a"));
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    let reason =
        |name| container_of(&status, name).state.as_ref().unwrap().waiting.as_ref().unwrap().reason.clone();
    assert_eq!(reason("web").as_deref(), Some("PodInitializing"));
    assert_eq!(reason("setup").as_deref(), Some("ContainerCreating"));
    assert_eq!(condition_of(&status, "Initialized"), json!(["False", "ContainersNotInitialized"]));
    assert_eq!(condition_of(&status, "ContainersReady"), json!(["False", "ContainersNotReady"]));
    assert_eq!(condition_of(&status, "PodScheduled"), json!(["True", null]));
}

#[test]
fn a_running_group_is_a_running_and_ready_pod_with_addresses_ids_and_times() {
    let status = compute(Some(&pod()), Some(&running_group()), None);
    assert_eq!((status.phase.as_deref(), &status.message), (Some("Running"), &None));
    let ips: Vec<_> = status.pod_ips.iter().flatten().map(|one| one.ip.as_str()).collect();
    assert_eq!(ips, ["10.0.0.7", "fd00::7"], "one of each family");
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.observed_generation, Some(3));
    let web = container_of(&status, "web");
    assert!(web.ready && web.started == Some(true));
    let id = web.container_id.as_deref().unwrap();
    assert!(id.starts_with("eci://") && id.len() == 70, "{id}");
    assert_ne!(web.container_id, container_of(&status, "log").container_id);
    let init = container_of(&status, "setup");
    assert_eq!(
        init.state.as_ref().unwrap().terminated.as_ref().unwrap().reason.as_deref(),
        Some("Completed")
    );
    for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"] {
        assert_eq!(condition_of(&status, kind), json!(["True", null]), "{kind}");
    }
}

#[test]
fn readiness_is_the_clouds_own() {
    let mut observed = running_group();
    observed.containers.as_mut().unwrap()[0].ready = Some(false);
    let status = compute(Some(&pod()), Some(&observed), None);
    assert_eq!(condition_of(&status, "ContainersReady"), json!(["False", "ContainersNotReady"]));
    assert_eq!(condition_of(&status, "Ready"), json!(["False", "ContainersNotReady"]));
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_readiness_gate_keeps_a_pod_from_being_ready_and_not_its_containers() {
    let mut pod = pod();
    pod.spec.as_mut().unwrap().readiness_gates =
        serde_json::from_value(json!([{"conditionType": "example.com/lb"}])).unwrap();
    let status = compute(Some(&pod), Some(&running_group()), None);
    assert_eq!(condition_of(&status, "ContainersReady"), json!(["True", null]));
    assert_eq!(condition_of(&status, "Ready"), json!(["False", "ReadinessGatesNotReady"]));
}

#[test]
fn a_pod_is_pending_until_every_container_has_started_once() {
    let mut observed = running_group();
    let waits = ContainerState::Waiting { reason: Some("ErrImagePull".to_owned()), message: None };
    observed.containers.as_mut().unwrap()[1] = container("log", waits.clone());
    assert_eq!(compute(Some(&pod()), Some(&observed), None).phase.as_deref(), Some("Pending"));
    // A container that waits for its restart has started.
    observed.containers.as_mut().unwrap()[1] = ObservedContainer {
        previous: Some(Termination { exit_code: Some(1), ..Termination::default() }),
        restarts: Some(1),
        ..container("log", waits)
    };
    let status = compute(Some(&pod()), Some(&observed), None);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(container_of(&status, "log").restart_count, 1);
}

#[test]
fn a_group_that_ended_unobserved_gets_its_exit_codes_and_times() {
    let mut observed = running_group();
    observed.state = Some(GroupState::Ended);
    observed.containers = Some(vec![container("web", ended(0)), container("log", ended(3))]);
    let status = compute(Some(&pod()), Some(&observed), None);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    let log = container_of(&status, "log").state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((log.exit_code, log.reason.as_deref()), (3, Some("Error")));
    assert_eq!(log.finished_at.as_ref().unwrap().0, time(5));
    observed.containers = Some(vec![container("web", ended(0)), container("log", ended(0))]);
    assert_eq!(compute(Some(&pod()), Some(&observed), None).phase.as_deref(), Some("Succeeded"));
}

#[test]
fn nothing_runs_in_a_group_that_has_failed_whatever_its_containers_said_last() {
    let before = compute(Some(&pod()), Some(&running_group()), None);
    let mut observed = running_group();
    observed.state = Some(GroupState::Failed);
    observed.reason = Some("ScheduleFailed".to_owned());
    let status = compute(Some(&pod()), Some(&observed), Some(&before));
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("ScheduleFailed")));
    assert_eq!(status.message.as_deref(), Some("no stock in zone a"));
    for name in ["web", "log"] {
        let ended = container_of(&status, name).state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    }
    assert_eq!(condition_of(&status, "Ready"), json!(["False", "PodFailed"]));
}

#[test]
fn a_final_phase_stays_and_a_pod_that_ran_is_not_pending_again() {
    let pod = pod();
    let before = compute(Some(&pod), Some(&running_group()), None);
    let again = compute(Some(&pod), Some(&group(GroupState::Provisioning)), Some(&before));
    assert_eq!(again.phase.as_deref(), Some("Running"));
    assert_eq!(again.pod_ip, before.pod_ip, "the cloud says nothing about addresses");
    let failed = compute(Some(&pod), Some(&group(GroupState::Failed)), Some(&before));
    let after = compute(Some(&pod), Some(&running_group()), Some(&failed));
    assert_eq!((after.phase.as_deref(), &after.message), (Some("Failed"), &failed.message));
}

#[test]
fn a_transition_time_changes_only_with_its_condition_and_the_start_time_never() {
    let pod = pod();
    let first = compute(Some(&pod), Some(&running_group()), None);
    let second = pod_status(&StatusInput {
        pod: Some(&pod),
        observed: Some(&running_group()),
        previous: Some(&first),
        warning: None,
        is_resizing: false,
        node_ips: &["192.0.2.1".parse().unwrap()],
        runtime: "eci",
        now: time(500),
    });
    assert_eq!(first, second);
}

#[test]
fn a_preempted_group_is_a_disrupted_pod() {
    let mut observed = running_group();
    observed.state = Some(GroupState::Failed);
    observed.preempted = true;
    let status = compute(Some(&pod()), Some(&observed), None);
    assert_eq!(condition_of(&status, "DisruptionTarget"), json!(["True", "PreemptedByCloud"]));
    assert_eq!(status.reason.as_deref(), Some("PreemptedByCloud"));
}

#[test]
fn a_pod_that_the_core_has_not_spoken_of_shows_what_the_cloud_shows() {
    let status = compute(None, Some(&running_group()), None);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.container_statuses.unwrap().len(), 2);
    assert_eq!(status.qos_class, None, "the status is not complete");
}

#[test]
fn a_restart_count_never_decreases_and_the_earlier_end_is_kept() {
    let pod = pod();
    let mut observed = running_group();
    observed.containers.as_mut().unwrap()[0] =
        ObservedContainer { restarts: Some(2), ..container("web", ended(1)) };
    let before = compute(Some(&pod), Some(&observed), None);
    observed.containers.as_mut().unwrap()[0] = container("web", running());
    let after = compute(Some(&pod), Some(&observed), Some(&before));
    let web = container_of(&after, "web");
    assert_eq!(web.restart_count, 2);
    assert_eq!(web.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
}
