//! When a group is asked for by its id.

use super::*;
use crate::backend::{ContainerState, ObservedContainer, Termination};

const SECOND: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_mins(5);

fn seen(state: GroupState) -> Observed {
    Observed { state: Some(state), ..Observed::new(GroupRef::new("a", "a")) }
}

/// What details say of a group whose init container is in this state.
fn detailed(state: GroupState, init: ContainerState) -> Observed {
    let one =
        ObservedContainer { name: "init".to_owned(), state: Some(init), ..ObservedContainer::default() };
    Observed { complete: true, init_containers: Some(vec![one]), ..seen(state) }
}

fn terminated(code: i32) -> ContainerState {
    ContainerState::Terminated(Termination { exit_code: Some(code), ..Termination::default() })
}

/// A group that was created at 0 s.
fn created(expects_init: bool) -> Group {
    let mut group = Group::new(Duration::ZERO, 1, Observed::new(GroupRef::new("a", "a")), false);
    group.mark_created();
    group.set_expects_init(expects_init);
    group
}

fn poll_run(begun: Duration) -> PollRun {
    PollRun { begun, listed: false, sweep: SWEEP }
}

fn inquiry(group: &Group, now: Duration) -> Option<Inquiry> {
    group.inquiry(now, &poll_run(now))
}

/// The first half second from this time on at which the group is asked for.
fn asked_at(group: &Group, from: Duration) -> Duration {
    let times = (0..1200).map(|at| from + at * SECOND / 2);
    times.into_iter().find(|at| inquiry(group, *at).is_some()).expect("it is asked for")
}

#[test]
fn a_group_that_starts_is_asked_for_late_if_its_pod_has_no_init_containers() {
    let mut group = created(false);
    assert_eq!(asked_at(&group, Duration::ZERO), 25 * SECOND);
    group.update(SECOND, seen(GroupState::Provisioning), false);
    assert_eq!(asked_at(&group, SECOND), 25 * SECOND);
    group.update(20 * SECOND, seen(GroupState::Running), false);
    assert_eq!(inquiry(&group, 20 * SECOND), Some(Inquiry { since: 20 * SECOND, urgent: false }));
    group.update(21 * SECOND, Observed { complete: true, ..seen(GroupState::Running) }, true);
    assert_eq!(asked_at(&group, 21 * SECOND), 21 * SECOND + SWEEP);
}

#[test]
fn a_group_whose_state_no_list_shows_is_asked_for_at_once() {
    let mut group = created(false);
    assert_eq!(inquiry(&group, SECOND), None, "no list can show it yet");
    group.update(2 * SECOND, Observed::new(GroupRef::new("a", "a")), false);
    assert_eq!(inquiry(&group, 2 * SECOND), Some(Inquiry { since: 2 * SECOND, urgent: false }));
}

#[test]
fn the_init_containers_of_a_group_are_asked_for_until_they_have_ended() {
    let mut group = created(true);
    let first = asked_at(&group, Duration::ZERO);
    assert!(first <= 2 * SECOND, "{first:?}");
    assert!(inquiry(&group, first).is_some_and(|inquiry| inquiry.urgent));
    let running = ContainerState::Running { started: None };
    group.update(2 * SECOND, detailed(GroupState::Provisioning, running.clone()), true);
    assert!(asked_at(&group, 2 * SECOND) <= 4 * SECOND);
    // One that takes an hour is not asked for all the time.
    group.update(3600 * SECOND, detailed(GroupState::Provisioning, running), true);
    assert_eq!(asked_at(&group, 3600 * SECOND), 3625 * SECOND);
    group.update(3626 * SECOND, detailed(GroupState::Provisioning, terminated(1)), true);
    assert!(asked_at(&group, 3626 * SECOND) <= 3628 * SECOND, "it will be restarted");
    group.update(3627 * SECOND, detailed(GroupState::Provisioning, terminated(0)), true);
    assert_eq!(asked_at(&group, 3627 * SECOND), 3652 * SECOND);
}

#[test]
fn a_group_that_has_ended_is_asked_for_at_once() {
    let mut group = created(false);
    group.update(SECOND, seen(GroupState::Failed), false);
    assert_eq!(inquiry(&group, SECOND), Some(Inquiry { since: SECOND, urgent: true }));
}

#[test]
fn a_group_that_stops_is_asked_for_when_the_feed_does_not_show_it() {
    let mut group = created(false);
    group.set_removal(Removal::Accepted { at: 10 * SECOND, again_at: 600 * SECOND });
    group.update(11 * SECOND, seen(GroupState::Deleting), false);
    assert_eq!(asked_at(&group, 11 * SECOND), 15 * SECOND, "not right after its delete");
    let run = poll_run(16 * SECOND);
    group.update(17 * SECOND, seen(GroupState::Deleting), false);
    assert_eq!(group.inquiry(18 * SECOND, &run), None, "this run has shown it");
    group.update(19 * SECOND, seen(GroupState::Deleting), true);
    assert_eq!(asked_at(&group, 20 * SECOND), 21 * SECOND, "not in each run");
}

#[test]
fn a_feed_that_covers_the_delete_and_does_not_show_the_group_is_the_first_sign_that_it_is_gone() {
    let mut group = created(false);
    group.set_removal(Removal::Accepted { at: 10 * SECOND, again_at: 600 * SECOND });
    assert!(!group.is_missed_in_feed(5 * SECOND), "no feed has shown that it stops");
    group.update(11 * SECOND, seen(GroupState::Deleting), false);
    assert!(!group.is_missed_in_feed(12 * SECOND), "the feed does not go back so far");
    assert!(group.is_missed_in_feed(5 * SECOND));
    assert!(!group.count_absence(12 * SECOND, false), "a feed alone is not believed");
    assert!(!group.is_missed_in_feed(5 * SECOND), "it counts once");
    assert_eq!(inquiry(&group, 12 * SECOND), Some(Inquiry { since: 12 * SECOND, urgent: false }));
    assert!(group.count_absence(13 * SECOND, true));
}

#[test]
fn a_group_that_nobody_deletes_is_gone_when_it_was_missing_twice_before() {
    let mut group = created(false);
    group.update(SECOND, seen(GroupState::Running), false);
    assert!(!group.count_absence(20 * SECOND, true));
    assert!(!group.count_absence(21 * SECOND, false));
    assert!(!group.count_absence(22 * SECOND, false), "a list alone is not believed");
    assert!(group.count_absence(23 * SECOND, true));
}
