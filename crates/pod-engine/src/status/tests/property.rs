//! Properties that hold for every input.

use proptest::{prelude::*, sample::select};

use super::*;
use crate::containers::{Role, pod_containers};

const NAMES: [&str; 6] = ["web", "aid", "setup", "proxy", "prepare", "debug"];

fn now() -> impl Strategy<Value = RecordState> {
    select(vec![
        RecordState::Created,
        RecordState::Running,
        RecordState::Exited(0),
        RecordState::Exited(1),
        RecordState::Exited(137),
        RecordState::Refused,
        RecordState::Unknown,
    ])
}

fn spec() -> impl Strategy<Value = Value> {
    let policy = select(vec!["Always", "OnFailure", "Never"]);
    (policy, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(policy, two, inits, debug, probed)| {
        let probe = probed.then(|| json!({"exec": {"command": ["true"]}}));
        let mut containers = vec![json!({"name": "web", "image": "web", "readinessProbe": probe, "startupProbe": probe})];
        containers.extend(two.then(|| json!({"name": "aid", "image": "aid"})));
        let inits = if inits {
            json!([{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always", "startupProbe": probe}, {"name": "prepare"}])
        } else {
            Value::Null
        };
        json!({"restartPolicy": policy, "containers": containers, "initContainers": inits,
               "ephemeralContainers": debug.then(|| json!([{"name": "debug"}]))})
    })
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum StatusEvent {
    Sandbox,
    SandboxGone,
    Record(&'static str, RecordState),
    Forgotten(&'static str),
    FailureReason(&'static str),
    FailureResolved(&'static str),
    ProbeResult(&'static str, ProbeKind, ProbeResult),
    Deleted,
    Failed,
    Over,
    Restarted,
}

fn event() -> impl Strategy<Value = StatusEvent> {
    let name = || select(&NAMES[..]);
    let kind = select(vec![ProbeKind::Liveness, ProbeKind::Readiness, ProbeKind::Startup]);
    let result = select(vec![ProbeResult::Unknown, ProbeResult::Success, ProbeResult::Failure]);
    prop_oneof![
        2 => Just(StatusEvent::Sandbox),
        1 => Just(StatusEvent::SandboxGone),
        8 => (name(), now()).prop_map(|(name, now)| StatusEvent::Record(name, now)),
        1 => name().prop_map(StatusEvent::Forgotten),
        2 => name().prop_map(StatusEvent::FailureReason),
        1 => name().prop_map(StatusEvent::FailureResolved),
        2 => (name(), kind, result).prop_map(|(name, kind, result)| StatusEvent::ProbeResult(name, kind, result)),
        1 => Just(StatusEvent::Deleted),
        1 => Just(StatusEvent::Failed),
        1 => Just(StatusEvent::Over),
        1 => Just(StatusEvent::Restarted),
    ]
}

impl StatusFixture {
    fn apply(&mut self, event: StatusEvent) {
        match event {
            StatusEvent::Sandbox => self.sandbox_again(),
            StatusEvent::SandboxGone => self.stop_sandboxes(),
            StatusEvent::Record(name, now) => self.add_record(name, now),
            StatusEvent::Forgotten(name) => self.snapshot.containers.retain(|one| one.name != name),
            StatusEvent::FailureReason(name) => self.trouble_again(name, "CrashLoopBackOff"),
            StatusEvent::FailureResolved(name) => drop(self.failures.remove(name)),
            StatusEvent::ProbeResult(name, kind, result) => {
                if let Some(id) = self.snapshot.newest(name).map(|one| one.id.clone()) {
                    self.probe_results.set(&id, kind, result);
                }
            }
            StatusEvent::Deleted => self.pod.metadata.deletion_timestamp = Some(whole_seconds(self.now)),
            StatusEvent::Failed => {
                self.failed =
                    Some(FailureReason { reason: "Evicted".to_owned(), message: "no room".to_owned() });
            }
            StatusEvent::Over => self.terminated = true,
            StatusEvent::Restarted => self.previous = None,
        }
        self.now += std::time::Duration::from_millis(700);
    }
}

fn count(state: Option<&k8s_openapi::api::core::v1::ContainerState>) -> usize {
    state.map_or(0, |state| {
        usize::from(state.running.is_some())
            + usize::from(state.waiting.is_some())
            + usize::from(state.terminated.is_some())
    })
}

fn names(list: Option<&Vec<ContainerStatus>>) -> Vec<String> {
    list.into_iter().flatten().map(|one| one.name.clone()).collect()
}

/// Every container has exactly one status, in the kubelet's order, in exactly one state.
fn check_containers(pod: &Pod, status: &PodStatus) {
    let wanted = |role: fn(Role) -> bool| {
        pod_containers(pod)
            .filter(|container| role(container.role))
            .map(|container| container.spec.name.clone())
            .collect::<Vec<_>>()
    };
    let mut regular = wanted(|role| role == Role::Regular);
    regular.sort();
    assert_eq!(names(status.container_statuses.as_ref()), regular);
    assert_eq!(
        names(status.init_container_statuses.as_ref()),
        wanted(|role| matches!(role, Role::Init | Role::Sidecar))
    );
    assert_eq!(names(status.ephemeral_container_statuses.as_ref()), wanted(|role| role == Role::Ephemeral));
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    for one in lists.into_iter().flatten().flatten() {
        assert_eq!(count(one.state.as_ref()), 1, "{}: {:?}", one.name, one.state);
        assert!(count(one.last_state.as_ref()) <= 1, "{}: {:?}", one.name, one.last_state);
        let runs = one.state.as_ref().is_some_and(|state| state.running.is_some());
        assert!(runs || one.started != Some(true), "{} has started and does not run: {one:?}", one.name);
    }
}

/// The phase does not contradict the containers, nor the conditions the phase.
fn check_phase(pod: &Pod, status: &PodStatus, before: Option<&PodStatus>) {
    let regular: Vec<&ContainerStatus> = status.container_statuses.iter().flatten().collect();
    let ended = |one: &&ContainerStatus| one.state.as_ref().is_some_and(|state| state.terminated.is_some());
    let runs = |one: &&ContainerStatus| one.state.as_ref().is_some_and(|state| state.running.is_some());
    let was_final = |status: Option<&PodStatus>| {
        status.is_some_and(|status| matches!(phase(status), "Succeeded" | "Failed"))
    };
    let forced =
        was_final(before) || was_final(pod.status.as_ref()) || status.reason.as_deref() == Some("Evicted");
    match phase(status) {
        "Succeeded" => {
            let well = |one: &ContainerStatus| short(one.state.as_ref()).starts_with("ended 0");
            assert!(forced || regular.iter().all(|one| well(one)), "Succeeded: {regular:?}");
            assert_eq!(brief(status, "ContainersReady").1, "PodCompleted");
        }
        "Failed" => {
            let lost = |one: &ContainerStatus| {
                let bad = |state: String| state.starts_with("ended") && !state.starts_with("ended 0");
                bad(short(one.state.as_ref())) || bad(short(one.last_state.as_ref()))
            };
            let uninitialized = status.init_container_statuses.iter().flatten().any(lost);
            assert!(forced || uninitialized || !regular.iter().any(runs), "Failed, and runs: {regular:?}");
            assert_eq!(brief(status, "ContainersReady").1, "PodFailed");
        }
        "Running" => {
            let has_run = |one: &&ContainerStatus| runs(one) || ended(one) || one.last_state.is_some();
            assert!(regular.iter().all(has_run), "Running: {regular:?}");
        }
        "Pending" => {}
        other => panic!("{other} is no phase"),
    }
    let all_ready = regular.iter().all(|one| one.ready);
    assert!(all_ready || brief(status, "ContainersReady").0 == "False");
    assert!(brief(status, "ContainersReady").0 == "True" || brief(status, "Ready").0 == "False");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_status_never_contradicts_itself_or_what_was_said(spec in spec(), story in prop::collection::vec(event(), 1..40)) {
        let mut fixture = fixture(spec);
        for event in story {
            let before = fixture.previous.clone();
            let heard = fixture.pod.status.clone();
            fixture.apply(event);
            let status = fixture.compute();
            check_containers(&fixture.pod, &status);
            check_phase(&fixture.pod, &status, before.as_ref());
            let again = fixture.step();
            prop_assert_eq!(&again, &status, "pure");
            let reported_status = fixture.pod.status.clone().expect("told");
            let was_final = heard.as_ref().is_some_and(|heard| matches!(phase(heard), "Succeeded" | "Failed"));
            prop_assert!(!was_final || phase(&reported_status) == phase(&heard.expect("heard")), "a final phase was left");
            let counts = |status: &PodStatus| status.container_statuses.iter().flatten().map(|one| one.restart_count).collect::<Vec<_>>();
            if let Some(before) = before {
                let less = counts(&before).iter().zip(counts(&again)).any(|(before, now)| now < *before);
                prop_assert!(!less, "a restart was forgotten: {:?} after {:?}", counts(&again), counts(&before));
            }
            let terminated_status = terminated_status(&fixture.pod, &again);
            if !fixture.snapshot.is_live() {
                check_containers(&fixture.pod, &terminated_status);
            }
            prop_assert!(matches!(phase(&terminated_status), "Succeeded" | "Failed"));
        }
    }
}
