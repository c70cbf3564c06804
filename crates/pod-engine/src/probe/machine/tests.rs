use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    START.checked_add(SignedDuration::from_secs(1_000 + seconds)).unwrap()
}

fn machine(kind: Kind, failures: i32, successes: i32) -> Machine {
    let probe =
        Probe { failure_threshold: Some(failures), success_threshold: Some(successes), ..Probe::default() };
    Machine::new(kind, &probe, false)
}

/// A container that runs since the beginning; it has started unless its start is what is probed.
fn running(id: &str, kind: Kind) -> Target {
    Target { id: id.to_owned(), running: Some(at(0)), returns: true, started: kind != Kind::Startup }
}

fn moment(target: &Target) -> Moment<'_> {
    Moment { target: Some(target), over: false, stopping: false, agent_started: START, now: at(1) }
}

#[test]
fn before_any_result_a_container_lives_is_not_ready_and_may_or_may_not_have_started() {
    let cases = [
        (Kind::Liveness, Verdict::Success, false),
        (Kind::Readiness, Verdict::Failure, true),
        (Kind::Startup, Verdict::Unknown, true),
    ];
    for (kind, wanted, told) in cases {
        let (mut machine, mut verdicts) = (machine(kind, 3, 1), Verdicts::default());
        let target = running("a", kind);
        assert_eq!(machine.look(&moment(&target), &mut verdicts), (Step::Probe, told), "{kind}");
        assert_eq!(verdicts.get("a", kind), Some(wanted), "{kind}");
        assert_eq!(machine.look(&moment(&target), &mut verdicts), (Step::Probe, false), "told once: {kind}");
    }
}

#[test]
fn a_verdict_changes_when_as_many_equal_results_came_in_a_row_as_the_thresholds_say() {
    // Results, + or -, and the verdict after each: s, f.
    let cases = [
        (Kind::Readiness, 3, 1, "+", "s"),
        (Kind::Readiness, 3, 1, "+--+---+", "ssssssfs"),
        (Kind::Readiness, 1, 2, "+-++", "fffs"),
        (Kind::Readiness, 2, 3, "+++-+--++", "ffssssfff"),
        (Kind::Liveness, 3, 1, "--+---", "sssssf"),
        (Kind::Liveness, 1, 1, "-", "f"),
    ];
    for (kind, failures, successes, results, wanted) in cases {
        let (mut machine, mut verdicts) = (machine(kind, failures, successes), Verdicts::default());
        let target = running("a", kind);
        machine.look(&moment(&target), &mut verdicts);
        let mut found = String::new();
        for result in results.chars() {
            machine.heard(result == '+', &mut verdicts);
            found.push(match verdicts.get("a", kind) {
                Some(Verdict::Success) => 's',
                Some(Verdict::Failure) => 'f',
                _ => '?',
            });
        }
        assert_eq!(found, wanted, "{kind} {failures} {successes} {results}");
    }
}

#[test]
fn after_its_verdict_liveness_and_startup_ask_nothing_until_there_is_another_container() {
    for (kind, success) in [(Kind::Liveness, false), (Kind::Startup, false), (Kind::Startup, true)] {
        let (mut machine, mut verdicts) = (machine(kind, 1, 1), Verdicts::default());
        let first = running("a", kind);
        machine.look(&moment(&first), &mut verdicts);
        assert!(machine.heard(success, &mut verdicts), "{kind} {success}");
        assert_eq!(machine.look(&moment(&first), &mut verdicts), (Step::Wait, false), "{kind} {success}");
        let second = running("b", kind);
        assert_eq!(machine.look(&moment(&second), &mut verdicts).0, Step::Probe, "{kind} {success}");
        assert_eq!(verdicts.get("a", kind), None, "the old container is forgotten");
        assert_eq!(verdicts.get("b", kind), Some(initial(kind)));
    }
    let (mut machine, mut verdicts) = (machine(Kind::Readiness, 1, 1), Verdicts::default());
    let target = running("a", Kind::Readiness);
    machine.look(&moment(&target), &mut verdicts);
    machine.heard(false, &mut verdicts);
    assert_eq!(machine.look(&moment(&target), &mut verdicts).0, Step::Probe, "readiness is asked for ever");
}

#[test]
fn liveness_and_readiness_wait_for_the_start_and_startup_ends_with_it() {
    for (kind, started, wanted) in [
        (Kind::Liveness, false, Step::Wait),
        (Kind::Liveness, true, Step::Probe),
        (Kind::Readiness, false, Step::Wait),
        (Kind::Readiness, true, Step::Probe),
        (Kind::Startup, false, Step::Probe),
        (Kind::Startup, true, Step::Wait),
    ] {
        let target = Target { started, ..running("a", kind) };
        let (step, _) = machine(kind, 3, 1).look(&moment(&target), &mut Verdicts::default());
        assert_eq!(step, wanted, "{kind} {started}");
    }
}

#[test]
fn the_initial_delay_counts_from_the_start_of_the_container() {
    let probe = Probe { initial_delay_seconds: Some(5), ..Probe::default() };
    let target = running("a", Kind::Liveness);
    for (now, wanted) in [(0, Step::Wait), (4, Step::Wait), (5, Step::Probe), (6, Step::Probe)] {
        let mut machine = Machine::new(Kind::Liveness, &probe, false);
        let (step, _) = machine.look(&Moment { now: at(now), ..moment(&target) }, &mut Verdicts::default());
        assert_eq!(step, wanted, "{now}");
    }
    let (before, _) = Machine::new(Kind::Liveness, &probe, false)
        .look(&Moment { now: at(-60), ..moment(&target) }, &mut Verdicts::default());
    assert_eq!(before, Step::Wait, "a clock that went back is no reason to hurry");
}

#[test]
fn a_container_that_was_there_before_the_agent_keeps_the_verdict_that_its_status_shows() {
    for (kind, age, wanted) in [
        (Kind::Readiness, 9, Some(Verdict::Failure)),
        (Kind::Readiness, 11, None),
        (Kind::Liveness, 11, None),
        (Kind::Startup, 11, None),
    ] {
        let (mut machine, mut verdicts) = (machine(kind, 3, 1), Verdicts::default());
        let target = running("a", kind);
        machine.look(&Moment { agent_started: at(age), now: at(age + 1), ..moment(&target) }, &mut verdicts);
        assert_eq!(verdicts.get("a", kind), wanted, "{kind} {age}");
    }
    let mut verdicts = Verdicts::default();
    let target = Target { started: true, ..running("a", Kind::Startup) };
    Machine::new(Kind::Startup, &Probe::default(), true)
        .look(&Moment { agent_started: at(11), now: at(12), ..moment(&target) }, &mut verdicts);
    assert_eq!(verdicts.get("a", Kind::Startup), Some(Verdict::Success), "a sidecar that had started");
}

#[test]
fn what_does_not_run_fails_and_is_waited_for_as_long_as_it_comes_back() {
    for (returns, step, verdict) in [(true, Step::Wait, Some(Verdict::Failure)), (false, Step::Rest, None)] {
        let (mut machine, mut verdicts) = (machine(Kind::Readiness, 3, 1), Verdicts::default());
        let target = Target { running: None, returns, ..running("a", Kind::Readiness) };
        assert_eq!(machine.look(&moment(&target), &mut verdicts).0, step);
        assert_eq!(verdicts.get("a", Kind::Readiness), verdict);
        let next = running("b", Kind::Readiness);
        assert_eq!(machine.look(&moment(&next), &mut verdicts).0, Step::Probe);
    }
    let nothing = Moment { target: None, ..moment(&running("a", Kind::Readiness)) }.now;
    let none = Moment { target: None, over: false, stopping: false, agent_started: START, now: nothing };
    assert_eq!(machine(Kind::Liveness, 3, 1).look(&none, &mut Verdicts::default()), (Step::Wait, false));
}

#[test]
fn a_pod_that_is_stopped_is_neither_killed_nor_held_back_by_its_probes() {
    for kind in [Kind::Liveness, Kind::Startup] {
        let (mut machine, mut verdicts) = (machine(kind, 1, 1), Verdicts::default());
        let target = running("a", kind);
        machine.look(&moment(&target), &mut verdicts);
        machine.heard(false, &mut verdicts);
        let (step, _) = machine.look(&Moment { stopping: true, ..moment(&target) }, &mut verdicts);
        assert_eq!((step, verdicts.get("a", kind)), (Step::End, Some(Verdict::Success)), "{kind}");
    }
}

#[test]
fn a_pod_that_is_over_is_not_asked_about() {
    let (mut machine, mut verdicts) = (machine(Kind::Readiness, 1, 1), Verdicts::default());
    let target = running("a", Kind::Readiness);
    machine.look(&moment(&target), &mut verdicts);
    let (step, _) = machine.look(&Moment { over: true, ..moment(&target) }, &mut verdicts);
    assert_eq!((step, verdicts), (Step::End, Verdicts::default()));
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Result(bool),
    Error,
    Restart,
    Exit,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => any::<bool>().prop_map(Happening::Result),
        2 => Just(Happening::Error),
        1 => Just(Happening::Restart),
        1 => Just(Happening::Exit),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Liveness), Just(Kind::Readiness), Just(Kind::Startup)]
}

proptest! {
    #[test]
    fn a_verdict_changes_only_with_enough_equal_results_in_a_row_and_never_while_on_hold(
        kind in kind(),
        failures in 1..4_i32,
        successes in 1..4_i32,
        happenings in proptest::collection::vec(happening(), 0..60),
    ) {
        let (mut machine, mut verdicts) = (machine(kind, failures, successes), Verdicts::default());
        let mut number = 0;
        let mut target = running("0", kind);
        let mut row: Vec<bool> = Vec::new();
        let mut held = false;
        for happening in happenings {
            match happening {
                Happening::Restart => {
                    number += 1;
                    target = running(&number.to_string(), kind);
                    held = false;
                }
                Happening::Exit => target.running = None,
                Happening::Result(_) | Happening::Error => {}
            }
            let known = verdicts.get(&target.id, kind);
            let (step, told) = machine.look(&moment(&target), &mut verdicts);
            prop_assert_eq!(step == Step::Probe, target.running.is_some() && !held);
            if let Happening::Error = happening && known.is_some() && target.running.is_some() {
                prop_assert_eq!(verdicts.get(&target.id, kind), known);
                prop_assert!(!told);
            }
            let Happening::Result(success) = happening else { continue };
            if step != Step::Probe {
                continue;
            }
            let before = verdicts.get(&target.id, kind);
            let told = machine.heard(success, &mut verdicts);
            row.push(success);
            let after = verdicts.get(&target.id, kind);
            let needed = usize::try_from(if success { successes } else { failures }).unwrap();
            let enough = row.iter().rev().take_while(|result| **result == success).count() >= needed;
            let wanted = if success { Verdict::Success } else { Verdict::Failure };
            prop_assert_eq!(after, if enough { Some(wanted) } else { before });
            prop_assert!(!told || after != before);
            if enough && (kind == Kind::Startup || (kind == Kind::Liveness && !success)) {
                held = true;
                row.clear();
            }
            prop_assert!(verdicts.iter().count() <= 1, "only the newest container is judged");
        }
    }
}
