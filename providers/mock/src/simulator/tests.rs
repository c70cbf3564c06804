use std::time::Duration;

use k8s_openapi::{
    api::core::v1::{Container as ApiContainer, ContainerStatus, EphemeralContainer, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::*;
use crate::{lifecycle::Lifecycle, time::after};

mod property;

fn at(millis: u64) -> Timestamp {
    after(Timestamp::UNIX_EPOCH, Duration::from_millis(millis))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn container(name: &str) -> ApiContainer {
    ApiContainer { name: name.into(), image: Some("registry/app:1".into()), ..ApiContainer::default() }
}

fn pod(uid: &str, policy: &str, containers: &[&str]) -> Pod {
    let metadata = ObjectMeta {
        namespace: Some("default".into()),
        name: Some("web".into()),
        uid: Some(uid.into()),
        ..ObjectMeta::default()
    };
    let spec = PodSpec {
        containers: containers.iter().map(|name| container(name)).collect(),
        restart_policy: Some(policy.into()),
        ..PodSpec::default()
    };
    Pod { metadata, spec: Some(spec), ..Pod::default() }
}

fn desired(pod: Pod, life: Lifecycle) -> DesiredPod {
    DesiredPod {
        node: "node".into(),
        host_ip: [192, 0, 2, 1].into(),
        pod_cidr: Cidr::default(),
        life: Arc::new(life),
        pod: Arc::new(pod),
    }
}

fn reference(uid: &str) -> PodRef {
    PodRef::new("default", "web", uid)
}

fn status(simulator: &PodSimulator, uid: &str) -> PodStatus {
    simulator.status(&reference(uid)).unwrap()
}

fn phase(simulator: &PodSimulator, uid: &str) -> String {
    status(simulator, uid).phase.unwrap()
}

fn first(simulator: &PodSimulator, uid: &str) -> ContainerStatus {
    status(simulator, uid).container_statuses.unwrap().remove(0)
}

fn condition(status: &PodStatus, kind: &str) -> String {
    let mut all = status.conditions.iter().flatten();
    all.find(|condition| condition.type_ == kind).unwrap().status.clone()
}

/// The state of each container as one word.
fn states(statuses: Option<Vec<ContainerStatus>>) -> Vec<String> {
    let word = |status: ContainerStatus| {
        let state = status.state.unwrap();
        match (state.waiting, state.running, state.terminated) {
            (Some(waiting), None, None) => waiting.reason.unwrap(),
            (None, Some(_), None) => "Running".into(),
            (None, None, Some(ended)) => format!("Ended({})", ended.exit_code),
            other => panic!("a state with several members: {other:?}"),
        }
    };
    statuses.unwrap_or_default().into_iter().map(word).collect()
}

fn created(pod: Pod, life: Lifecycle) -> PodSimulator {
    let mut simulator = PodSimulator::new();
    simulator.apply(at(0), Request::create(desired(pod, life))).unwrap();
    simulator
}

fn delete(simulator: &mut PodSimulator, now: u64, uid: &str, grace: u64) -> Result<Reply> {
    simulator.apply(at(now), Request::Delete { pod: reference(uid), grace: seconds(grace) })
}

#[test]
fn a_pod_without_delays_runs_and_is_ready_at_once() {
    let simulator = created(pod("u1", "Always", &["a"]), Lifecycle::default());
    let status = status(&simulator, "u1");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&status, "ContainersReady"), "True");
    assert_eq!(condition(&status, "Initialized"), "True");
    assert_eq!(status.pod_ip.as_deref(), Some("10.88.0.2"));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.start_time.unwrap().0, at(0));
    let container = first(&simulator, "u1");
    assert_eq!(container.container_id.as_deref(), Some("mock://u1.a.0"));
    assert_eq!(container.image, "registry/app:1");
    assert!(container.image_id.starts_with("registry/app@sha256:"));
}

#[test]
fn delays_hold_back_start_and_readiness_and_each_happens_at_its_time() {
    let life = Lifecycle { start_delay: seconds(2), ready_delay: seconds(3), ..Lifecycle::default() };
    let mut simulator = created(pod("u1", "Always", &["a"]), life);
    assert_eq!(phase(&simulator, "u1"), "Pending");
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["ContainerCreating"]);
    assert_eq!(status(&simulator, "u1").pod_ip, None);
    assert_eq!(simulator.next_deadline(), Some(at(2000)));
    simulator.advance(at(1999));
    assert_eq!(phase(&simulator, "u1"), "Pending");
    simulator.advance(at(2500));
    assert_eq!(phase(&simulator, "u1"), "Running");
    let running = first(&simulator, "u1").state.unwrap().running.unwrap();
    assert_eq!(running.started_at.unwrap().0, at(2000));
    assert!(!first(&simulator, "u1").ready);
    assert_eq!(simulator.next_deadline(), Some(at(5000)));
    simulator.advance(at(5000));
    assert!(first(&simulator, "u1").ready);
    assert_eq!(condition(&status(&simulator, "u1"), "ContainersReady"), "True");
    assert_eq!(simulator.next_deadline(), None);
}

#[test]
fn a_never_pod_ends_with_the_phase_of_its_exit_codes() {
    for (code, expected) in [(0, "Succeeded"), (3, "Failed")] {
        let life = Lifecycle { run_for: Some(seconds(5)), exit_code: code, ..Lifecycle::default() };
        let mut simulator = created(pod("u1", "Never", &["a", "b"]), life);
        simulator.advance(at(60_000));
        assert_eq!(phase(&simulator, "u1"), expected);
        let ended = first(&simulator, "u1").state.unwrap().terminated.unwrap();
        assert_eq!((ended.exit_code, ended.finished_at.unwrap().0), (code, at(5000)));
        assert_eq!(simulator.next_deadline(), None);
    }
}

#[test]
fn on_failure_restarts_only_failed_containers() {
    let life = Lifecycle { run_for: Some(seconds(5)), exit_code: 1, ..Lifecycle::default() };
    let mut simulator = created(pod("u1", "OnFailure", &["a"]), life);
    simulator.advance(at(6000));
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["CrashLoopBackOff"]);
    assert_eq!(phase(&simulator, "u1"), "Running");
    simulator.advance(at(15_000));
    let container = first(&simulator, "u1");
    assert_eq!(container.restart_count, 1);
    assert_eq!(container.last_state.unwrap().terminated.unwrap().exit_code, 1);
    let finish = Request::Finish { pod: reference("u1"), container: "a".into(), exit_code: 0 };
    simulator.apply(at(16_000), finish).unwrap();
    assert_eq!(phase(&simulator, "u1"), "Succeeded");
}

#[test]
fn always_restarts_with_a_back_off_that_doubles() {
    let life = Lifecycle { run_for: Some(seconds(1)), restart_backoff: seconds(2), ..Lifecycle::default() };
    let mut simulator = created(pod("u1", "Always", &["a"]), life);
    // Runs 0-1, waits 2 until 3, runs 3-4, waits 4 until 8, runs 8-9, waits 8 until 17.
    for (time, word, restarts) in [
        (2000, "CrashLoopBackOff", 0),
        (3500, "Running", 1),
        (7999, "CrashLoopBackOff", 1),
        (8000, "Running", 2),
    ] {
        simulator.advance(at(time));
        assert_eq!(states(status(&simulator, "u1").container_statuses), [word], "at {time}");
        assert_eq!(first(&simulator, "u1").restart_count, restarts, "at {time}");
        assert_eq!(phase(&simulator, "u1"), "Running");
    }
    assert_eq!(simulator.next_deadline(), Some(at(9000)));
}

#[test]
fn init_containers_complete_in_order_before_the_others_start() {
    let mut spec = pod("u1", "Always", &["a"]);
    spec.spec.as_mut().unwrap().init_containers = Some(vec![container("i1"), container("i2")]);
    let mut simulator = created(spec, Lifecycle { init_run_for: seconds(2), ..Lifecycle::default() });
    let both = |simulator: &PodSimulator| {
        let status = status(simulator, "u1");
        (states(status.init_container_statuses.clone()), states(status.container_statuses))
    };
    assert_eq!(
        both(&simulator),
        (vec!["Running".into(), "PodInitializing".into()], vec!["PodInitializing".into()])
    );
    assert_eq!(phase(&simulator, "u1"), "Pending");
    assert_eq!(condition(&status(&simulator, "u1"), "Initialized"), "False");
    simulator.advance(at(3000));
    assert_eq!(both(&simulator), (vec!["Ended(0)".into(), "Running".into()], vec!["PodInitializing".into()]));
    simulator.advance(at(4000));
    assert_eq!(both(&simulator), (vec!["Ended(0)".into(), "Ended(0)".into()], vec!["Running".into()]));
    assert_eq!(condition(&status(&simulator, "u1"), "Initialized"), "True");
    assert_eq!(phase(&simulator, "u1"), "Running");
}

#[test]
fn a_failing_init_container_fails_a_never_pod_and_is_tried_again_in_others() {
    for (policy, expected, word) in
        [("Never", "Failed", "Ended(1)"), ("Always", "Pending", "CrashLoopBackOff")]
    {
        let mut spec = pod("u1", policy, &["a"]);
        spec.spec.as_mut().unwrap().init_containers = Some(vec![container("i1")]);
        let mut simulator = created(spec, Lifecycle { init_exit_code: 1, ..Lifecycle::default() });
        simulator.advance(at(5000));
        assert_eq!(phase(&simulator, "u1"), expected);
        assert_eq!(states(status(&simulator, "u1").init_container_statuses), [word]);
        assert_eq!(states(status(&simulator, "u1").container_statuses), ["PodInitializing"]);
    }
}

#[test]
fn a_sidecar_runs_beside_the_others_and_ends_with_them() {
    let mut spec = pod("u1", "Never", &["a"]);
    let sidecar = ApiContainer { restart_policy: Some("Always".into()), ..container("s") };
    spec.spec.as_mut().unwrap().init_containers = Some(vec![sidecar]);
    let mut simulator = created(spec, Lifecycle { run_for: Some(seconds(5)), ..Lifecycle::default() });
    assert_eq!(states(status(&simulator, "u1").init_container_statuses), ["Running"]);
    assert_eq!(phase(&simulator, "u1"), "Running");
    simulator.advance(at(5000));
    assert_eq!(phase(&simulator, "u1"), "Succeeded");
    assert_eq!(states(status(&simulator, "u1").init_container_statuses), ["Ended(0)"]);
    // The phase is final.
    simulator.advance(at(100_000));
    assert_eq!(states(status(&simulator, "u1").init_container_statuses), ["Ended(0)"]);
}

#[test]
fn a_deleted_pod_ends_after_its_stop_delay_and_is_forgotten_later() {
    let mut simulator =
        created(pod("u1", "Always", &["a"]), Lifecycle { stop_delay: seconds(4), ..Lifecycle::default() });
    delete(&mut simulator, 1000, "u1", 30).unwrap();
    assert_eq!(phase(&simulator, "u1"), "Running");
    simulator.advance(at(4999));
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["Running"]);
    simulator.advance(at(5000));
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["Ended(0)"]);
    assert_eq!(phase(&simulator, "u1"), "Succeeded");
    simulator.advance(at(15_000));
    assert!(simulator.status(&reference("u1")).is_none());
    assert_eq!(*delete(&mut simulator, 15_001, "u1", 30).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn a_pod_that_does_not_stop_in_time_is_killed_and_a_shorter_grace_counts() {
    let life = Lifecycle { stop_delay: seconds(600), ..Lifecycle::default() };
    let mut simulator = created(pod("u1", "Always", &["a"]), life);
    delete(&mut simulator, 0, "u1", 30).unwrap();
    delete(&mut simulator, 5000, "u1", 3).unwrap();
    // A longer grace period has no effect.
    delete(&mut simulator, 6000, "u1", 60).unwrap();
    simulator.advance(at(7999));
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["Running"]);
    simulator.advance(at(8000));
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["Ended(137)"]);
    assert_eq!(phase(&simulator, "u1"), "Failed");
    // Nothing runs: a second delete removes it immediately.
    assert_eq!(*delete(&mut simulator, 8001, "u1", 0).unwrap_err().kind(), Kind::NotFound);
    assert!(simulator.status(&reference("u1")).is_none());
}

#[test]
fn a_pod_deleted_before_its_start_shows_every_container_terminated() {
    let mut simulator = created(
        pod("u1", "Always", &["a", "b"]),
        Lifecycle { start_delay: seconds(60), ..Lifecycle::default() },
    );
    delete(&mut simulator, 1000, "u1", 30).unwrap();
    assert_eq!(states(status(&simulator, "u1").container_statuses), ["Ended(137)", "Ended(137)"]);
    assert_eq!(phase(&simulator, "u1"), "Failed");
}

#[test]
fn a_vanishing_pod_is_gone_without_a_trace_but_in_the_journal() {
    let mut simulator = created(
        pod("u1", "Always", &["a"]),
        Lifecycle { vanish_after: Some(seconds(5)), ..Lifecycle::default() },
    );
    simulator.take_changes();
    simulator.advance(at(5000));
    assert!(simulator.status(&reference("u1")).is_none());
    assert_eq!(simulator.take_changes(), [ChangedPod { node: "node".into(), pod: reference("u1") }]);
    let Reply::Journal(journal) = simulator.apply(at(5000), Request::Journal).unwrap() else { panic!() };
    assert_eq!(journal["u1"], 1);
    assert_eq!(simulator.next_deadline(), None);
}

#[test]
fn creating_twice_leaves_one_pod_and_namesakes_are_kept_apart() {
    let mut simulator = created(pod("u1", "Always", &["a"]), Lifecycle::default());
    simulator
        .apply(at(1), Request::create(desired(pod("u1", "Always", &["a"]), Lifecycle::default())))
        .unwrap();
    simulator
        .apply(at(2), Request::create(desired(pod("u2", "Always", &["a"]), Lifecycle::default())))
        .unwrap();
    assert_ne!(status(&simulator, "u1").pod_ip, status(&simulator, "u2").pod_ip);
    delete(&mut simulator, 3, "u1", 0).unwrap();
    assert_eq!(phase(&simulator, "u2"), "Running");
    let Reply::Journal(journal) = simulator.apply(at(3), Request::Journal).unwrap() else { panic!() };
    assert_eq!((journal["u1"], journal["u2"]), (1, 1));
    let Reply::Pods(listed) = simulator.apply(at(3), Request::List { node: "node".into() }).unwrap() else {
        panic!()
    };
    assert_eq!(listed.len(), 2);
    let Reply::Pods(none) = simulator.apply(at(3), Request::List { node: "other".into() }).unwrap() else {
        panic!()
    };
    assert_eq!(none, []);
}

#[test]
fn an_update_restarts_a_container_with_a_new_image_and_starts_debug_containers() {
    let mut simulator = created(pod("u1", "Never", &["a"]), Lifecycle::default());
    let mut changed = pod("u1", "Never", &["a"]);
    let spec = changed.spec.as_mut().unwrap();
    spec.containers[0].image = Some("registry/app:2".into());
    spec.ephemeral_containers =
        Some(vec![EphemeralContainer { name: "debug".into(), ..EphemeralContainer::default() }]);
    simulator.apply(at(1000), Request::update(desired(changed, Lifecycle::default()))).unwrap();
    let container = first(&simulator, "u1");
    assert_eq!((container.image.as_str(), container.restart_count), ("registry/app:2", 1));
    assert_eq!(states(status(&simulator, "u1").ephemeral_container_statuses), ["Running"]);
    let renamed = desired(pod("u1", "Never", &["b"]), Lifecycle::default());
    let error = simulator.apply(at(2000), Request::update(renamed)).unwrap_err();
    assert_eq!(*error.kind(), Kind::Invalid);
    let unknown = desired(pod("u9", "Never", &["a"]), Lifecycle::default());
    assert_eq!(*simulator.apply(at(2000), Request::update(unknown)).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn the_active_deadline_fails_the_pod() {
    let mut spec = pod("u1", "Always", &["a"]);
    spec.spec.as_mut().unwrap().active_deadline_seconds = Some(7);
    let mut simulator = created(spec, Lifecycle::default());
    simulator.advance(at(7000));
    let status = status(&simulator, "u1");
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("DeadlineExceeded"))
    );
    assert_eq!(states(status.container_statuses), ["Ended(137)"]);
}

#[test]
fn a_full_range_of_addresses_is_exhausted_until_a_pod_goes() {
    let mut simulator = PodSimulator::new();
    let small = |uid: &str| {
        let mut wanted = desired(pod(uid, "Always", &["a"]), Lifecycle::default());
        wanted.pod_cidr = "10.0.0.0/30".parse().unwrap();
        Request::create(wanted)
    };
    simulator.apply(at(0), small("u1")).unwrap();
    assert_eq!(*simulator.apply(at(0), small("u2")).unwrap_err().kind(), Kind::Exhausted);
    simulator.apply(at(1), Request::Vanish(reference("u1"))).unwrap();
    simulator.apply(at(2), small("u2")).unwrap();
}
