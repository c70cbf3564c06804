use std::time::Duration;

use proptest::prelude::*;

use super::{case, container};
use crate::{
    plan::{MIN_GRACE, StopReason, StopStep, grace_period, remaining_grace, stop_message, stop_order},
    probe::result::ProbeKind,
    snapshot::annotation,
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn step(id: &str, after: &[&str]) -> StopStep {
    let name = id.split('-').next().unwrap().to_owned();
    StopStep { id: id.to_owned(), name, after: after.iter().map(|&id| id.to_owned()).collect() }
}

#[test]
fn sidecars_stop_after_the_regular_containers_and_in_reverse_order() {
    let records = "s=running t=running i=running u=running a=running b=exited:0 c=unknown e=running";
    let case = case("Always", "+s +t i +u", "a b c", records).ephemeral("e");
    let order = stop_order(Some(&case.pod), &case.snapshot);
    let expected = [
        step("e-0", &[]),
        step("c-0", &[]),
        step("a-0", &[]),
        step("u-0", &["c-0", "a-0"]),
        step("i-0", &[]),
        step("t-0", &["c-0", "a-0", "u-0"]),
        step("s-0", &["c-0", "a-0", "u-0", "t-0"]),
    ];
    assert_eq!(order, expected);
    let alone = stop_order(None, &case.snapshot);
    assert!(alone.iter().all(|step| step.after.is_empty()), "without the pod nobody knows a sidecar");
    assert_eq!(alone.len(), 7);
    assert_eq!(stop_message("a"), "Stopping container a");
}

#[test]
fn the_grace_is_that_of_the_deletion_else_of_the_probe_else_of_the_pod() {
    let record = container("a", 0, "s0", 0);
    let mut case = case("Always", "", "a", "a=running").probed("a", ProbeKind::Liveness, None).probed(
        "a",
        ProbeKind::Startup,
        None,
    );
    let all = |case: &super::Case| {
        [StopReason::Ordinary, StopReason::Liveness, StopReason::Startup, StopReason::Changed]
            .map(|why| grace_period(Some(&case.pod), &record, why, None).as_secs())
    };
    assert_eq!(all(&case), [30, 30, 30, 30]);
    case.any("a").liveness_probe.as_mut().unwrap().termination_grace_period_seconds = Some(5);
    case.any("a").startup_probe.as_mut().unwrap().termination_grace_period_seconds = Some(60);
    assert_eq!(all(&case), [30, 5, 60, 30]);
    case.pod.metadata.deletion_grace_period_seconds = Some(7);
    assert_eq!(all(&case), [7, 7, 7, 7]);
    assert_eq!(grace_period(Some(&case.pod), &record, StopReason::Liveness, Some(seconds(3))), seconds(3));
    case.pod.metadata.deletion_grace_period_seconds = None;
    case.spec().termination_grace_period_seconds = None;
    assert_eq!(all(&case), [2, 2, 2, 2], "a probe's counts only beside the pod's");
    assert_eq!(grace_period(Some(&case.pod), &record, StopReason::RestartAll, None), Duration::ZERO);
}

#[test]
fn without_the_pod_the_grace_is_what_was_noted_on_the_container() {
    let mut record = container("a", 0, "s0", 0);
    assert_eq!(grace_period(None, &record, StopReason::Ordinary, None), MIN_GRACE);
    record.annotations.insert(annotation::TERMINATION_GRACE.to_owned(), "45".to_owned());
    assert_eq!(grace_period(None, &record, StopReason::Ordinary, None), seconds(45));
    record.annotations.insert(annotation::DELETION_GRACE.to_owned(), "9".to_owned());
    assert_eq!(grace_period(None, &record, StopReason::Ordinary, None), seconds(9));
    assert_eq!(grace_period(None, &record, StopReason::Ordinary, Some(seconds(1))), seconds(1));
    record.annotations.insert(annotation::DELETION_GRACE.to_owned(), "-9".to_owned());
    assert_eq!(grace_period(None, &record, StopReason::Ordinary, None), Duration::ZERO);
}

#[test]
fn whole_seconds_are_taken_off_the_grace_and_two_are_always_left() {
    assert_eq!(remaining_grace(seconds(30), Duration::from_millis(4999)), seconds(26));
    assert_eq!(remaining_grace(seconds(30), seconds(29)), MIN_GRACE);
    assert_eq!(remaining_grace(seconds(30), seconds(90)), MIN_GRACE);
    assert_eq!(remaining_grace(Duration::ZERO, Duration::ZERO), MIN_GRACE);
}

proptest! {
    #[test]
    fn what_is_left_is_never_under_two_seconds_and_never_above_the_grace(grace_ms in 0_u64..700_000, spent_ms in 0_u64..900_000) {
        let (grace, spent) = (Duration::from_millis(grace_ms), Duration::from_millis(spent_ms));
        let left = remaining_grace(grace, spent);
        prop_assert!(left >= MIN_GRACE);
        prop_assert!(left <= grace.max(MIN_GRACE));
        // Above two seconds the rounding error is less than a second.
        prop_assert!(left == MIN_GRACE || left + spent < grace + seconds(1));
    }
}
