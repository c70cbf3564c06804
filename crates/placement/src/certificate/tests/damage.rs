//! Secrets that somebody has damaged.

use rcgen::KeyPair;

use super::*;

/// What a repair keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    ca: bool,
    leaf: bool,
}

fn another_key() -> String {
    KeyPair::generate().unwrap().serialize_pem()
}

/// Leaf and key of a CA that nobody trusts.
fn foreign() -> Contents {
    renewed(None, after(start(), days(1))).0
}

fn check(what: &str, damage: impl FnOnce(&mut Contents), kept: Kept) {
    let before = created();
    let mut damaged = before.clone();
    damage(&mut damaged);
    let now = after(start(), days(2));
    let (repaired, changes) = renewed(Some(&damaged), now);
    let is_kept = Kept { ca: repaired.ca_key == before.ca_key, leaf: repaired.leaf == before.leaf };
    assert_eq!(is_kept, kept, "{what}: {changes:?}");
    assert_eq!(changes.iter().any(Change::is_repair), !kept.ca, "{what}: {changes:?}");
    assert_eq!(accepts(&repaired.bundle, &repaired, now), Ok(()), "{what}");
    // Clients that know the CA from before are not lost if its key or its leaf is there.
    let expected = kept.ca || kept.leaf;
    assert_eq!(accepts(&before.bundle, &repaired, now).is_ok(), expected, "{what}");
}

#[test]
fn what_is_damaged_is_replaced_and_the_rest_is_kept() {
    let all = Kept { ca: true, leaf: true };
    let no_ca = Kept { ca: false, leaf: true };
    let no_leaf = Kept { ca: true, leaf: false };
    let nothing = Kept { ca: false, leaf: false };
    check("the CA's key is gone", |it| it.ca_key.clear(), no_ca);
    check("the CA's key is no key", |it| it.ca_key = "garbage".to_owned(), no_ca);
    check("the CA's key is cut off", |it| it.ca_key.truncate(90), no_ca);
    check("the CA's key is of another CA", |it| it.ca_key = another_key(), no_ca);
    check("the bundle is gone", |it| it.bundle.clear(), nothing);
    check("the bundle is cut off", |it| it.bundle.truncate(300), nothing);
    check("the bundle has another CA", |it| it.bundle = foreign().bundle, nothing);
    check("the bundle has another CA, too", |it| it.bundle = foreign().bundle + &it.bundle, all);
    check("the bundle has a leaf", |it| it.bundle = it.leaf.clone(), nothing);
    check("the leaf is gone", |it| it.leaf.clear(), no_leaf);
    check("the leaf is no certificate", |it| it.leaf = "garbage".to_owned(), no_leaf);
    check("the leaf's key is gone", |it| it.leaf_key.clear(), no_leaf);
    check("the leaf's key is of another leaf", |it| it.leaf_key = another_key(), no_leaf);
    check(
        "the leaf is of another CA",
        |it| {
            let foreign = foreign();
            (it.leaf, it.leaf_key) = (foreign.leaf, foreign.leaf_key);
        },
        no_leaf,
    );
    check("there is a key of a next CA that does not exist", |it| it.next_ca_key = another_key(), all);
    check(
        "only the CAs are left",
        |it| *it = Contents { bundle: it.bundle.clone(), ..Contents::default() },
        nothing,
    );
}

#[test]
fn an_empty_secret_is_filled_and_nobody_is_warned() {
    let (contents, changes) = renewed(Some(&Contents::default()), start());
    assert_eq!(changes, [Change::Created]);
    assert_eq!(accepts(&contents.bundle, &contents, start()), Ok(()));
}

#[test]
fn a_ca_without_its_key_leaves_the_bundle_when_its_leaves_have_expired() {
    let mut contents = created();
    contents.ca_key.clear();
    let (mut contents, changes) = renewed(Some(&contents), start());
    assert_eq!(changes, [Change::CaReplaced]);
    assert_eq!(authorities(&contents), 2);
    for day in 1..=100 {
        if let Some(renewal) = renewal(Some(&contents), after(start(), days(day))) {
            contents = renewal.contents;
        }
        assert_eq!(authorities(&contents), if day < 90 { 2 } else { 1 }, "day {day}");
    }
}

#[test]
fn the_next_ca_takes_over_if_the_key_of_the_issuing_one_is_lost() {
    let now = after(start(), CA_LIFETIME * 3 / 4);
    let (mut contents, _) = renewed(Some(&created()), now);
    assert_eq!(authorities(&contents), 2);
    let bundle = contents.bundle.clone();
    contents.ca_key.clear();
    let (repaired, changes) = renewed(Some(&contents), now);
    assert_eq!(changes, [Change::NextCaIssues]);
    let later = after(now, days(61));
    let (renewed, _) = renewed(Some(&repaired), later);
    assert_eq!(accepts(&bundle, &renewed, later), Ok(()));
}
