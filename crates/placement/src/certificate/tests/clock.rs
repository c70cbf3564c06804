//! Clocks that are set.

use super::*;

/// Lets time pass by minutes with this clock, and returns what was changed.
fn changes(contents: &mut Contents, from: Timestamp) -> Vec<Change> {
    let mut all = Vec::new();
    for minute in 0..10 {
        if let Some(renewal) = renewal(Some(contents), after(from, SignedDuration::from_mins(minute))) {
            all.extend(renewal.changes);
            *contents = renewal.contents;
        }
        assert_eq!(accepts(&contents.bundle, contents, from), Ok(()), "minute {minute}");
    }
    all
}

#[test]
fn a_clock_that_was_set_replaces_a_leaf_once_and_never_the_ca() {
    for hours in [-30 * 24, -49, 24 * 91, 24 * 365] {
        let mut contents = created();
        let authority = contents.ca_key.clone();
        for clock in [start(), after(start(), SignedDuration::from_hours(hours)), start()] {
            let changes = changes(&mut contents, clock);
            let replaced = changes.iter().all(|change| matches!(change, Change::LeafReplaced(_)));
            assert!(replaced && changes.len() <= 1, "{hours} hours, {clock}: {changes:?}");
        }
        assert_eq!(contents.ca_key, authority, "{hours} hours");
    }
}

#[test]
fn clocks_that_differ_by_a_day_do_not_fight() {
    let mut contents = created();
    for hours in [-23, 23, -12, 12] {
        let clock = after(start(), SignedDuration::from_hours(hours));
        assert_eq!(changes(&mut contents, clock), [], "{hours} hours");
    }
}

#[test]
fn a_clock_that_shows_nonsense_does_no_harm_to_the_process() {
    for clock in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
        for current in [None, Some(&created())] {
            let target = Target { names: &names(), now: clock, bundle_is_published: true };
            // Whatever it is, it returns.
            let _ = Renewal::of(current, target);
        }
    }
}
