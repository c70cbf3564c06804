use rand::{SeedableRng as _, rngs::StdRng};

use super::*;
use crate::{backend::Observed, lifecycle::Inquiry};

const SECOND: Duration = Duration::from_secs(1);

fn page(ids: &[&str], next: Option<&str>) -> Page {
    let group = |id: &&str| Observed::new(GroupRef::new(*id, *id));
    Page { groups: ids.iter().map(group).collect(), next: next.map(str::to_owned), incomplete: false }
}

fn is_complete(pages: &mut Pages, last: &Page) -> bool {
    match pages.add(last) {
        Progress::End { complete, .. } => complete,
        Progress::Next(token) => panic!("goes on with {token}"),
    }
}

#[test]
fn a_list_is_complete_when_all_its_pages_are() {
    let mut pages = Pages::default();
    assert_eq!(pages.add(&page(&["a"], Some("2"))), Progress::Next("2".to_owned()));
    let seen = ["a", "b"].map(Arc::from).into();
    assert_eq!(pages.add(&page(&["b"], None)), Progress::End { complete: true, seen });
}

#[test]
fn one_incomplete_page_makes_the_list_incomplete() {
    let mut pages = Pages::default();
    pages.add(&Page { incomplete: true, ..page(&["a"], Some("2")) });
    assert!(!is_complete(&mut pages, &page(&["b"], None)));
}

#[test]
fn a_token_that_comes_twice_ends_the_list_and_proves_nothing() {
    let mut pages = Pages::default();
    pages.add(&page(&["a"], Some("2")));
    assert!(!is_complete(&mut pages, &page(&["a"], Some("2"))));
}

#[test]
fn a_list_without_an_end_is_given_up() {
    let mut pages = Pages::default();
    let mut number = 0;
    while let Progress::Next(_) = pages.add(&page(&["a"], Some(&number.to_string()))) {
        number += 1;
        assert!(number <= MAX_PAGES, "goes on for ever");
    }
}

#[test]
fn polls_are_a_second_apart_while_something_happens_and_grow_to_half_a_minute() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut schedule = Schedule::default();
    schedule.changed(Duration::ZERO);
    schedule.succeeded(SECOND, 1, true, &mut rng);
    assert!(schedule.next_at() < Duration::from_millis(2200));
    let mut now = SECOND;
    for _ in 0..20 {
        schedule.succeeded(now, 1, false, &mut rng);
        assert!(schedule.next_at() <= now + 33 * SECOND);
        now = schedule.next_at();
    }
    schedule.succeeded(now, 1, false, &mut rng);
    assert!(schedule.next_at() >= now + 24 * SECOND, "{:?}", schedule.next_at());
    schedule.changed(now);
    schedule.hurry(now + 2 * SECOND);
    assert!(schedule.next_at() <= now + 3 * SECOND);
}

#[test]
fn a_poll_of_many_calls_is_followed_by_a_longer_wait_even_in_a_hurry() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut schedule = Schedule::default();
    schedule.succeeded(SECOND, 50, true, &mut rng);
    schedule.hurry(2 * SECOND);
    assert!(schedule.next_at() > 51 * SECOND);
}

#[test]
fn something_that_is_stuck_is_polled_less_often() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut schedule = Schedule::default();
    schedule.changed(Duration::ZERO);
    let later = 3 * Duration::from_mins(1);
    schedule.succeeded(later, 1, true, &mut rng);
    assert!(schedule.next_at() >= later + 4 * SECOND);
}

#[test]
fn failed_polls_wait_longer_each_time_and_nothing_hurries_them() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut schedule = Schedule::default();
    for longest in [2, 5, 10, 30, 30] {
        schedule.failed(SECOND, false, &mut rng);
        schedule.hurry(SECOND);
        let wait = schedule.next_at().saturating_sub(SECOND);
        assert!(wait <= longest * SECOND && wait >= longest * SECOND / 2, "{wait:?}");
    }
    schedule.failed(SECOND, true, &mut rng);
    assert!(schedule.next_at() > 30 * SECOND, "refused credentials are retried slowly");
}

fn question(id: u32, since: u32, urgent: bool) -> Question {
    let group = GroupRef::new(format!("{id:03}"), "name");
    Question { group, inquiry: Inquiry { since: since * SECOND, urgent } }
}

/// How many groups are asked for at 100 s, in calls of 20.
fn asked(questions: impl IntoIterator<Item = Question>, coming: usize) -> usize {
    collect(100 * SECOND, questions.into_iter().collect(), coming, 20).len()
}

#[test]
fn calls_for_details_are_full_while_more_groups_are_on_their_way() {
    let due = |count: u32| (0..count).map(|id| question(id, 98, false));
    assert_eq!(asked(due(19), 100), 0);
    assert_eq!(asked(due(20), 100), 20);
    assert_eq!(asked(due(47), 100), 40);
    assert_eq!(asked(due(3), 16), 3, "too few are on their way to fill the call");
    assert_eq!(asked(due(47), 0), 47);
}

#[test]
fn nobody_waits_for_a_full_call_for_long_and_what_is_urgent_not_at_all() {
    let due = || (0..5).map(|id| question(id, 98, false));
    assert_eq!(asked(due(), 100), 0);
    assert_eq!(asked(due().chain([question(9, 97, false)]), 100), 6);
    assert_eq!(asked(due().chain([question(9, 100, true)]), 100), 6);
    let urgent = question(99, 100, true);
    assert_eq!(asked((0..20).map(|id| question(id, 98, false)).chain([urgent]), 100), 21);
}

#[test]
fn those_that_wait_for_the_longest_time_are_asked_for_first() {
    let questions = (0..30).map(|id| question(id, 99 - id, false)).collect();
    let asked = collect(100 * SECOND, questions, 0, 1);
    let ids: Vec<&str> = asked.iter().map(|group| &*group.id).collect();
    assert_eq!((ids.len(), ids[0]), (20, "029"), "a run makes at most 20 calls");
}

#[test]
fn polls_are_fewer_while_many_calls_wait_for_the_budget_but_changes_are_seen_within_three_seconds() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut schedule = Schedule::default();
    schedule.changed(Duration::ZERO);
    schedule.set_crowded(true);
    schedule.succeeded(SECOND, 1, true, &mut rng);
    schedule.hurry(SECOND);
    let wait = schedule.next_at().saturating_sub(SECOND);
    assert!(wait >= 2 * SECOND && wait < 3 * SECOND, "{wait:?}");
}
