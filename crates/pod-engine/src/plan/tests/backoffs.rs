use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState as ApiState, ContainerStateWaiting, ContainerStatus};
use proptest::prelude::*;

use super::{Case, NOW, at, case, container};
use crate::{plan::CrashBackoffs, snapshot::ContainerState};

/// A container that exits right after its start. Only its newest exited instance is kept.
struct CrashLoop {
    case: Case,
    restarts: u32,
}

impl CrashLoop {
    fn new() -> Self {
        Self { case: case("Always", "", "a", "a=exited:1"), restarts: 0 }
    }

    /// Waits for the next start and returns the seconds since the exit. The new instance then runs for `life` seconds.
    fn next_start(&mut self, life: i64) -> i64 {
        let finished = self.case.snapshot.containers[0].finished.unwrap();
        self.case.now = finished;
        let plan = self.case.plan();
        if let Some(deferred) = plan.deferred.first() {
            assert_eq!(plan.next_deadline, Some(deferred.until));
            assert!(plan.start.is_empty());
            self.case.now = deferred.until.checked_sub(jiff::SignedDuration::from_nanos(1)).unwrap();
            assert_eq!(self.case.plan().deferred, plan.deferred, "until the last moment");
            self.case.now = deferred.until;
        }
        let plan = self.case.plan();
        assert!(plan.deferred.is_empty(), "{plan:?}");
        let start = &plan.start[0];
        self.case.backoffs.begin(start, self.case.now);
        self.restarts = start.restarts.unwrap();
        let mut next = container("a", self.restarts, "s0", self.case.now.as_second());
        next.state = ContainerState::Exited;
        next.finished = Some(at(self.case.now.as_second() + life));
        self.case.snapshot.containers.insert(0, next);
        self.case.snapshot.containers.truncate(2);
        self.case.now.duration_since(finished).as_secs()
    }

    /// The next process, with or without the last written status.
    fn restart(&mut self, told: bool) {
        let deferred = {
            let now = self.case.snapshot.containers[0].finished.unwrap();
            self.case.now = now;
            self.case.plan().deferred.pop()
        };
        self.case.pod.status = None;
        if let Some(deferred) = deferred.filter(|_| told) {
            let waiting = ContainerStateWaiting {
                reason: Some(deferred.failure.reason),
                message: Some(deferred.failure.message),
            };
            self.case.status().container_statuses = Some(vec![ContainerStatus {
                name: "a".to_owned(),
                restart_count: self.restarts.try_into().unwrap(),
                state: Some(ApiState { waiting: Some(waiting), ..ApiState::default() }),
                ..ContainerStatus::default()
            }]);
        }
        self.case.backoffs = CrashBackoffs::new(Duration::from_mins(5));
        self.case.backoffs.adopt(&self.case.pod, &self.case.snapshot, self.case.now);
    }
}

#[test]
fn back_off_doubles_up_to_the_limit_and_begins_with_an_immediate_restart() {
    let mut crashes = CrashLoop::new();
    let waits: Vec<_> = (0..9).map(|_| crashes.next_start(1)).collect();
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn who_has_lived_for_ten_minutes_is_forgiven() {
    let mut crashes = CrashLoop::new();
    assert_eq!(
        [crashes.next_start(1), crashes.next_start(1), crashes.next_start(600), crashes.next_start(601)],
        [0, 10, 20, 40]
    );
    assert_eq!([crashes.next_start(1), crashes.next_start(1), crashes.next_start(1)], [0, 10, 20]);
}

#[test]
fn a_limit_under_the_first_wait_is_the_first_wait() {
    let mut crashes = CrashLoop::new();
    crashes.case.backoffs = CrashBackoffs::new(Duration::from_millis(3500));
    assert_eq!([crashes.next_start(1), crashes.next_start(1), crashes.next_start(1)], [0, 3, 3]);
    crashes.case.now = crashes.case.snapshot.containers[0].finished.unwrap();
    assert!(crashes.case.plan().deferred[0].failure.message.starts_with("back-off 3.5s restarting"));
}

#[test]
fn the_words_are_those_of_a_kubelet() {
    let mut crashes = CrashLoop::new();
    let mut messages = Vec::new();
    for _ in 0..7 {
        crashes.next_start(1);
        crashes.case.now = crashes.case.snapshot.containers[0].finished.unwrap();
        let deferred = crashes.case.plan().deferred.remove(0);
        assert_eq!(deferred.failure.reason, "CrashLoopBackOff");
        assert_eq!(deferred.event, "Back-off restarting failed container a in pod web_shop(u-1)");
        messages.push(deferred.failure.message);
    }
    let waits = ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"];
    let expected =
        waits.map(|wait| format!("back-off {wait} restarting failed container=a pod=web_shop(u-1)"));
    assert_eq!(messages, expected);
}

#[test]
fn an_init_container_in_back_off_holds_what_comes_after_it_and_a_sidecar_does_not() {
    let deferred = |inits: &str, records: &str, name: &str| {
        let mut case = case("Always", inits, "a", records);
        case.now = at(NOW - 890);
        let start = case.plan().start.into_iter().find(|start| start.name == name).unwrap();
        case.backoffs.begin(&start, case.now);
        case.snapshot.containers.iter_mut().find(|record| record.name == name).unwrap().finished =
            Some(case.now);
        case.summary()
    };
    assert_eq!(deferred("+s i", "s=exited:0 i=exited:1", "s"), "keep:s0 start:i hold:s");
    assert_eq!(deferred("+s i", "s=exited:0 i=exited:1", "i"), "keep:s0 start:s hold:i");
    assert_eq!(deferred("+s", "s=exited:0 a=running", "s"), "keep:s0 hold:s");
    assert_eq!(deferred("", "a=exited:1", "a"), "keep:s0 hold:a");
}

#[test]
fn others_start_beside_one_that_waits() {
    let mut case = case("Always", "", "a b", "a=exited:1");
    case.now = at(NOW - 890);
    let start = case.plan().start.remove(0);
    case.backoffs.begin(&start, case.now);
    case.snapshot.containers[0].finished = Some(case.now);
    assert_eq!(case.summary(), "keep:s0 start:b hold:a");
}

#[test]
fn another_image_is_another_beginning_and_another_pod_is_not_concerned() {
    let mut crashes = CrashLoop::new();
    crashes.next_start(1);
    crashes.next_start(1);
    crashes.case.now = crashes.case.snapshot.containers[0].finished.unwrap();
    assert_eq!(crashes.case.summary(), "keep:s0 hold:a");
    let uid = crashes.case.pod.metadata.uid.replace("u-2".to_owned());
    assert_eq!(crashes.case.summary(), "keep:s0 start:a");
    crashes.case.pod.metadata.uid = uid;
    assert_eq!(crashes.case.summary(), "keep:s0 hold:a");
    crashes.case.any("a").image = Some("registry/image:2".to_owned());
    assert_eq!(crashes.case.summary(), "keep:s0 start:a");
    crashes.case.any("a").image = Some("registry/image:1".to_owned());
}

#[test]
fn what_is_swept_is_what_counts_no_more() {
    let mut crashes = CrashLoop::new();
    crashes.next_start(1);
    let started = crashes.case.snapshot.containers[0].created.as_second();
    crashes.case.now = crashes.case.snapshot.containers[0].finished.unwrap();
    crashes.case.backoffs.prune(at(started + 600));
    assert_eq!(crashes.case.summary(), "keep:s0 hold:a");
    crashes.case.backoffs.prune(at(started + 601));
    assert_eq!(crashes.case.summary(), "keep:s0 start:a");
}

#[test]
fn a_stopped_container_waits_from_the_end_of_the_one_before_it() {
    // As in the kubelet: when a liveness probe fails, the plan knows only the exit of the previous instance.
    let mut case =
        case("Always", "", "a", "a=running").probed("a", crate::probe::result::ProbeKind::Liveness, None);
    case.probe_results.set(
        "a-0",
        crate::probe::result::ProbeKind::Liveness,
        crate::probe::result::ProbeResult::Failure,
    );
    let plan = case.plan();
    assert_eq!((plan.start[0].restarts, plan.start[0].crash.clone()), (Some(1), None));
    case.backoffs.begin(&plan.start[0], case.now);
    case.snapshot.containers[0].state = ContainerState::Exited;
    case.snapshot.containers[0].finished = Some(case.now);
    case.record("a=running", "s0", NOW);
    case.probe_results.set(
        "a-1",
        crate::probe::result::ProbeKind::Liveness,
        crate::probe::result::ProbeResult::Failure,
    );
    let plan = case.plan();
    assert_eq!(plan.start[0].crash.as_ref().unwrap().finished, at(NOW));
    case.backoffs.begin(&plan.start[0], case.now);
    assert_eq!(case.summary(), "stop:a-1 keep:s0 hold:a", "stopped, and held");
}

#[test]
fn a_status_of_another_wait_is_not_believed() {
    let mut crashes = CrashLoop::new();
    for _ in 0..3 {
        crashes.next_start(1);
    }
    crashes.restart(true);
    let message = crashes.case.status().container_statuses.as_mut().unwrap()[0]
        .state
        .as_mut()
        .unwrap()
        .waiting
        .as_mut()
        .unwrap();
    for wrong in
        ["back-off 5x restarting failed container=a", "back-off restarting failed container=a", "hm", ""]
    {
        message.message = Some(wrong.to_owned());
    }
    crashes.case.backoffs = CrashBackoffs::new(Duration::from_mins(5));
    crashes.case.backoffs.adopt(&crashes.case.pod, &crashes.case.snapshot, crashes.case.now);
    assert_eq!(crashes.next_start(1), 40, "restart counts tell it, too");
}

#[test]
fn what_was_healthy_for_long_is_not_punished_for_its_count_after_a_restart_of_ours() {
    let mut case = case("Always", "", "a", "");
    let mut before = container("a", 50, "s0", NOW - 100_000);
    before.state = ContainerState::Exited;
    before.finished = Some(at(NOW - 30));
    let mut newest = container("a", 51, "s0", NOW - 29);
    newest.state = ContainerState::Exited;
    newest.finished = Some(at(NOW));
    case.snapshot.containers = vec![newest, before];
    case.backoffs.adopt(&case.pod, &case.snapshot, case.now);
    assert!(case.plan().deferred[0].failure.message.starts_with("back-off 10s "));
}

#[test]
fn the_first_instance_owes_nothing_after_a_restart_of_ours() {
    let mut crashes = CrashLoop::new();
    crashes.restart(true);
    assert_eq!(crashes.next_start(1), 0);
}

proptest! {
    /// The back-off is the same with and without a restart of the engine.
    #[test]
    fn back_off_goes_on_after_a_restart_of_ours(
        lives in prop::collection::vec(0_i64..100, 1..12),
        restart_at in 0_usize..12,
        told: bool,
        forget_before: bool,
    ) {
        let (mut unharmed, mut restarted) = (CrashLoop::new(), CrashLoop::new());
        for (turn, life) in lives.iter().enumerate() {
            if turn == restart_at {
                if forget_before {
                    restarted.case.snapshot.containers.truncate(1);
                }
                restarted.restart(told);
            }
            prop_assert_eq!(unharmed.next_start(*life), restarted.next_start(*life), "turn {}", turn);
        }
    }

    /// Each delay is twice the previous one. A container that ran for more than ten minutes has none, and if run time and delay together
    /// were longer, the next delay is the first one again.
    #[test]
    fn waits_climb_a_ladder(lives in prop::collection::vec(prop_oneof![0_i64..100, 200_i64..700], 1..20)) {
        let mut crashes = CrashLoop::new();
        let (mut lived, mut next) = (1, 0);
        for life in lives {
            let wait = crashes.next_start(life);
            prop_assert_eq!(wait, if lived > 600 { 0 } else { next });
            next = if wait == 0 || lived + wait > 600 { 10 } else { (wait * 2).min(300) };
            lived = life;
        }
    }
}
