use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    START.checked_add(SignedDuration::from_secs(1_000 + seconds)).unwrap()
}

fn tracker(kind: ProbeKind, failures: i32, successes: i32) -> ProbeTracker {
    let probe =
        Probe { failure_threshold: Some(failures), success_threshold: Some(successes), ..Probe::default() };
    ProbeTracker::new(kind, &probe, false)
}

/// A container that runs since the epoch. It has started, except for a startup probe.
fn running(id: &str, kind: ProbeKind) -> ProbeTarget {
    ProbeTarget {
        id: id.to_owned(),
        running: Some(at(0)),
        is_restarted: true,
        started: kind != ProbeKind::Startup,
    }
}

fn input(target: &ProbeTarget) -> ProbeInput<'_> {
    ProbeInput { target: Some(target), finished: false, stopping: false, agent_started: START, now: at(1) }
}

#[test]
fn before_any_result_a_container_lives_is_not_ready_and_may_or_may_not_have_started() {
    let cases = [
        (ProbeKind::Liveness, ProbeResult::Success, false),
        (ProbeKind::Readiness, ProbeResult::Failure, true),
        (ProbeKind::Startup, ProbeResult::Unknown, true),
    ];
    for (kind, wanted, told) in cases {
        let (mut tracker, mut probe_results) = (tracker(kind, 3, 1), ProbeResults::default());
        let target = running("a", kind);
        assert_eq!(
            tracker.next_step(&input(&target), &mut probe_results),
            (ProbeStep::Probe, told),
            "{kind}"
        );
        assert_eq!(probe_results.get("a", kind), Some(wanted), "{kind}");
        assert_eq!(
            tracker.next_step(&input(&target), &mut probe_results),
            (ProbeStep::Probe, false),
            "told once: {kind}"
        );
    }
}

#[test]
fn a_verdict_changes_when_as_many_equal_results_came_in_a_row_as_the_thresholds_say() {
    // Outcomes, + or -, and the result after each: s, f.
    let cases = [
        (ProbeKind::Readiness, 3, 1, "+", "s"),
        (ProbeKind::Readiness, 3, 1, "+--+---+", "ssssssfs"),
        (ProbeKind::Readiness, 1, 2, "+-++", "fffs"),
        (ProbeKind::Readiness, 2, 3, "+++-+--++", "ffssssfff"),
        (ProbeKind::Liveness, 3, 1, "--+---", "sssssf"),
        (ProbeKind::Liveness, 1, 1, "-", "f"),
    ];
    for (kind, failures, successes, results, wanted) in cases {
        let (mut tracker, mut probe_results) = (tracker(kind, failures, successes), ProbeResults::default());
        let target = running("a", kind);
        tracker.next_step(&input(&target), &mut probe_results);
        let mut found = String::new();
        for result in results.chars() {
            tracker.record_result(result == '+', &mut probe_results);
            found.push(match probe_results.get("a", kind) {
                Some(ProbeResult::Success) => 's',
                Some(ProbeResult::Failure) => 'f',
                _ => '?',
            });
        }
        assert_eq!(found, wanted, "{kind} {failures} {successes} {results}");
    }
}

#[test]
fn after_its_verdict_liveness_and_startup_ask_nothing_until_there_is_another_container() {
    for (kind, success) in
        [(ProbeKind::Liveness, false), (ProbeKind::Startup, false), (ProbeKind::Startup, true)]
    {
        let (mut tracker, mut probe_results) = (tracker(kind, 1, 1), ProbeResults::default());
        let first = running("a", kind);
        tracker.next_step(&input(&first), &mut probe_results);
        assert!(tracker.record_result(success, &mut probe_results), "{kind} {success}");
        assert_eq!(
            tracker.next_step(&input(&first), &mut probe_results),
            (ProbeStep::Wait, false),
            "{kind} {success}"
        );
        let second = running("b", kind);
        assert_eq!(
            tracker.next_step(&input(&second), &mut probe_results).0,
            ProbeStep::Probe,
            "{kind} {success}"
        );
        assert_eq!(probe_results.get("a", kind), None, "the old container is forgotten");
        assert_eq!(probe_results.get("b", kind), Some(initial(kind)));
    }
    let (mut tracker, mut probe_results) = (tracker(ProbeKind::Readiness, 1, 1), ProbeResults::default());
    let target = running("a", ProbeKind::Readiness);
    tracker.next_step(&input(&target), &mut probe_results);
    tracker.record_result(false, &mut probe_results);
    assert_eq!(
        tracker.next_step(&input(&target), &mut probe_results).0,
        ProbeStep::Probe,
        "readiness is asked for ever"
    );
}

#[test]
fn liveness_and_readiness_wait_for_the_start_and_startup_ends_with_it() {
    for (kind, started, wanted) in [
        (ProbeKind::Liveness, false, ProbeStep::Wait),
        (ProbeKind::Liveness, true, ProbeStep::Probe),
        (ProbeKind::Readiness, false, ProbeStep::Wait),
        (ProbeKind::Readiness, true, ProbeStep::Probe),
        (ProbeKind::Startup, false, ProbeStep::Probe),
        (ProbeKind::Startup, true, ProbeStep::Wait),
    ] {
        let target = ProbeTarget { started, ..running("a", kind) };
        let (step, _) = tracker(kind, 3, 1).next_step(&input(&target), &mut ProbeResults::default());
        assert_eq!(step, wanted, "{kind} {started}");
    }
}

#[test]
fn the_initial_delay_counts_from_the_start_of_the_container() {
    let probe = Probe { initial_delay_seconds: Some(5), ..Probe::default() };
    let target = running("a", ProbeKind::Liveness);
    for (now, wanted) in
        [(0, ProbeStep::Wait), (4, ProbeStep::Wait), (5, ProbeStep::Probe), (6, ProbeStep::Probe)]
    {
        let mut tracker = ProbeTracker::new(ProbeKind::Liveness, &probe, false);
        let (step, _) =
            tracker.next_step(&ProbeInput { now: at(now), ..input(&target) }, &mut ProbeResults::default());
        assert_eq!(step, wanted, "{now}");
    }
    let (before, _) = ProbeTracker::new(ProbeKind::Liveness, &probe, false)
        .next_step(&ProbeInput { now: at(-60), ..input(&target) }, &mut ProbeResults::default());
    assert_eq!(before, ProbeStep::Wait, "a clock that went back is no reason to hurry");
}

#[test]
fn a_container_that_was_there_before_the_agent_keeps_the_verdict_that_its_status_shows() {
    for (kind, age, wanted) in [
        (ProbeKind::Readiness, 9, Some(ProbeResult::Failure)),
        (ProbeKind::Readiness, 11, None),
        (ProbeKind::Liveness, 11, None),
        (ProbeKind::Startup, 11, None),
    ] {
        let (mut tracker, mut probe_results) = (tracker(kind, 3, 1), ProbeResults::default());
        let target = running("a", kind);
        tracker.next_step(
            &ProbeInput { agent_started: at(age), now: at(age + 1), ..input(&target) },
            &mut probe_results,
        );
        assert_eq!(probe_results.get("a", kind), wanted, "{kind} {age}");
    }
    let mut probe_results = ProbeResults::default();
    let target = ProbeTarget { started: true, ..running("a", ProbeKind::Startup) };
    ProbeTracker::new(ProbeKind::Startup, &Probe::default(), true)
        .next_step(&ProbeInput { agent_started: at(11), now: at(12), ..input(&target) }, &mut probe_results);
    assert_eq!(
        probe_results.get("a", ProbeKind::Startup),
        Some(ProbeResult::Success),
        "a sidecar that had started"
    );
}

#[test]
fn what_does_not_run_fails_and_is_waited_for_as_long_as_it_comes_back() {
    for (is_restarted, step, result) in
        [(true, ProbeStep::Wait, Some(ProbeResult::Failure)), (false, ProbeStep::Rest, None)]
    {
        let (mut tracker, mut probe_results) = (tracker(ProbeKind::Readiness, 3, 1), ProbeResults::default());
        let target = ProbeTarget { running: None, is_restarted, ..running("a", ProbeKind::Readiness) };
        assert_eq!(tracker.next_step(&input(&target), &mut probe_results).0, step);
        assert_eq!(probe_results.get("a", ProbeKind::Readiness), result);
        let next = running("b", ProbeKind::Readiness);
        assert_eq!(tracker.next_step(&input(&next), &mut probe_results).0, ProbeStep::Probe);
    }
    let nothing = ProbeInput { target: None, ..input(&running("a", ProbeKind::Readiness)) }.now;
    let none =
        ProbeInput { target: None, finished: false, stopping: false, agent_started: START, now: nothing };
    assert_eq!(
        tracker(ProbeKind::Liveness, 3, 1).next_step(&none, &mut ProbeResults::default()),
        (ProbeStep::Wait, false)
    );
}

#[test]
fn a_pod_that_is_stopped_is_neither_killed_nor_held_back_by_its_probes() {
    for kind in [ProbeKind::Liveness, ProbeKind::Startup] {
        let (mut tracker, mut probe_results) = (tracker(kind, 1, 1), ProbeResults::default());
        let target = running("a", kind);
        tracker.next_step(&input(&target), &mut probe_results);
        tracker.record_result(false, &mut probe_results);
        let (step, _) =
            tracker.next_step(&ProbeInput { stopping: true, ..input(&target) }, &mut probe_results);
        assert_eq!(
            (step, probe_results.get("a", kind)),
            (ProbeStep::End, Some(ProbeResult::Success)),
            "{kind}"
        );
    }
}

#[test]
fn a_pod_that_is_over_is_not_asked_about() {
    let (mut tracker, mut probe_results) = (tracker(ProbeKind::Readiness, 1, 1), ProbeResults::default());
    let target = running("a", ProbeKind::Readiness);
    tracker.next_step(&input(&target), &mut probe_results);
    let (step, _) = tracker.next_step(&ProbeInput { finished: true, ..input(&target) }, &mut probe_results);
    assert_eq!((step, probe_results), (ProbeStep::End, ProbeResults::default()));
}

#[derive(Clone, Copy, Debug)]
enum TrackerEvent {
    Result(bool),
    Error,
    Restart,
    Exit,
}

fn happening() -> impl Strategy<Value = TrackerEvent> {
    prop_oneof![
        8 => any::<bool>().prop_map(TrackerEvent::Result),
        2 => Just(TrackerEvent::Error),
        1 => Just(TrackerEvent::Restart),
        1 => Just(TrackerEvent::Exit),
    ]
}

fn kind() -> impl Strategy<Value = ProbeKind> {
    prop_oneof![Just(ProbeKind::Liveness), Just(ProbeKind::Readiness), Just(ProbeKind::Startup)]
}

proptest! {
    #[test]
    fn a_verdict_changes_only_with_enough_equal_results_in_a_row_and_never_while_on_hold(
        kind in kind(),
        failures in 1..4_i32,
        successes in 1..4_i32,
        happenings in proptest::collection::vec(happening(), 0..60),
    ) {
        let (mut tracker, mut probe_results) = (tracker(kind, failures, successes), ProbeResults::default());
        let mut number = 0;
        let mut target = running("0", kind);
        let mut row: Vec<bool> = Vec::new();
        let mut held = false;
        for happening in happenings {
            match happening {
                TrackerEvent::Restart => {
                    number += 1;
                    target = running(&number.to_string(), kind);
                    held = false;
                }
                TrackerEvent::Exit => target.running = None,
                TrackerEvent::Result(_) | TrackerEvent::Error => {}
            }
            let known = probe_results.get(&target.id, kind);
            let (step, told) = tracker.next_step(&input(&target), &mut probe_results);
            prop_assert_eq!(step == ProbeStep::Probe, target.running.is_some() && !held);
            if let TrackerEvent::Error = happening && known.is_some() && target.running.is_some() {
                prop_assert_eq!(probe_results.get(&target.id, kind), known);
                prop_assert!(!told);
            }
            let TrackerEvent::Result(success) = happening else { continue };
            if step != ProbeStep::Probe {
                continue;
            }
            let before = probe_results.get(&target.id, kind);
            let told = tracker.record_result(success, &mut probe_results);
            row.push(success);
            let after = probe_results.get(&target.id, kind);
            let needed = usize::try_from(if success { successes } else { failures }).unwrap();
            let enough = row.iter().rev().take_while(|result| **result == success).count() >= needed;
            let wanted = if success { ProbeResult::Success } else { ProbeResult::Failure };
            prop_assert_eq!(after, if enough { Some(wanted) } else { before });
            prop_assert!(!told || after != before);
            if enough && (kind == ProbeKind::Startup || (kind == ProbeKind::Liveness && !success)) {
                held = true;
                row.clear();
            }
            prop_assert!(probe_results.len() <= 1, "only the newest container is judged");
        }
    }
}
