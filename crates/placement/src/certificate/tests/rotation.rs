//! Fifteen years of leaves and CAs.

use std::collections::BTreeSet;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::*;

const YEARS: i64 = 15;
/// For how many days the leader may be away or its writes may be lost, a replica may see nothing, and the API server may have an old bundle. A
/// leaf is renewed 30 days before it expires, and a step takes up to six.
const MAX_ABSENCE: [i64; 3] = [12, 5, 20];

fn year(years: i64) -> SignedDuration {
    days(365 * years)
}

#[test]
fn the_next_ca_is_trusted_for_three_years_before_it_issues_leaves() {
    let first = created();
    let (added, changes) = renewed(Some(&first), after(start(), CA_LIFETIME * 2 / 3));
    assert_eq!(
        changes[0],
        Change::NextCaAdded { issues: before(after(start(), CA_LIFETIME), CA_RETIREMENT) }
    );
    assert!(changes[0].to_string().ends_with("restart it before 2036-08-10"), "{}", changes[0]);
    assert_eq!(authorities(&added), 2);
    assert_eq!(added.ca_key, first.ca_key);
    let end = after(start(), CA_LIFETIME);
    let (before_handover, _) = renewed(Some(&added), before(end, CA_RETIREMENT + days(1)));
    assert_eq!(before_handover.ca_key, first.ca_key);
    assert_eq!(accepts(&first.bundle, &before_handover, before(end, CA_RETIREMENT)), Ok(()));

    let now = before(end, CA_RETIREMENT);
    let (after_handover, changes) = renewed(Some(&before_handover), now);
    assert_eq!(changes, [Change::NextCaIssues]);
    assert_eq!(after_handover.ca_key, added.next_ca_key);
    assert_eq!(after_handover.next_ca_key, "");
    assert_eq!(authorities(&after_handover), 2);
    let (last, _) = renewed(Some(&after_handover), before(end, days(1)));
    assert_eq!(authorities(&last), 2);
    let (trimmed, changes) = renewed(Some(&last), end);
    assert_eq!(changes, [Change::Trimmed]);
    assert_eq!(authorities(&trimmed), 1);
    assert_eq!(accepts(&added.bundle, &trimmed, end), Ok(()));
}

#[test]
fn a_ca_that_the_api_server_does_not_trust_yet_issues_no_leaves_until_it_must() {
    let (added, _) = renewed(Some(&created()), after(start(), CA_LIFETIME * 2 / 3));
    let end = after(start(), CA_LIFETIME);
    let mut contents = added.clone();
    for day in (0..=100).rev() {
        let now = before(end, days(day));
        let target = Target { names: &names(), now, bundle_is_published: false };
        if let Some(renewal) = Renewal::of(Some(&contents), target).unwrap() {
            contents = renewal.contents;
        }
        assert_eq!(contents.ca_key == added.ca_key, day > 10, "{day} days before its end");
        assert_eq!(accepts(&contents.bundle, &contents, now), Ok(()), "{day} days before its end");
    }
}

/// A Secret, who writes it, and who has read it.
struct World {
    rng: StdRng,
    now: Timestamp,
    secret: Contents,
    /// What a replica serves whose watch is behind.
    served: Contents,
    /// What the API server trusts.
    published: String,
    /// Bundles that were read, and when for the last time.
    bundles: Vec<(String, Timestamp)>,
    changes: Vec<Change>,
    /// Since when the leader does nothing, the replica sees nothing, and the API server has an old bundle.
    stalled: [Timestamp; 3],
}

// === impl World ===

impl World {
    fn new(seed: u64) -> Self {
        let secret = created();
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: start(),
            served: secret.clone(),
            published: secret.bundle.clone(),
            bundles: Vec::new(),
            changes: Vec::new(),
            stalled: [start(); 3],
            secret,
        }
    }

    /// Whether one of the three works in this step, which it must after some time.
    fn works(&mut self, which: usize) -> bool {
        let works =
            self.rng.random_bool(0.6) || self.now >= after(self.stalled[which], days(MAX_ABSENCE[which]));
        if works {
            self.stalled[which] = self.now;
        }
        works
    }

    fn step(&mut self) {
        // A step of days, or of seconds after a crash.
        let most = if self.rng.random_bool(0.2) { 60 } else { 6 * 24 * 3600 };
        self.now = after(self.now, SignedDuration::from_secs(self.rng.random_range(1..=most)));
        if self.works(0) {
            let target = Target {
                names: &names(),
                now: self.now,
                bundle_is_published: self.published == self.secret.bundle,
            };
            let renewal = Renewal::of(Some(&self.secret), target).unwrap();
            if let Some(renewal) = renewal {
                self.secret = renewal.contents;
                self.changes.extend(renewal.changes);
            }
        }
        if self.works(1) {
            self.served = self.secret.clone();
        }
        if self.works(2) {
            self.published = self.secret.bundle.clone();
        }
        self.bundles.retain(|(bundle, _)| *bundle != self.secret.bundle);
        self.bundles.push((self.secret.bundle.clone(), self.now));
        self.check();
    }

    fn check(&self) {
        let oldest = before(self.now, BUNDLE_VALIDITY);
        let read = self.bundles.iter().filter(|(_, read)| *read >= oldest).map(|(bundle, _)| bundle);
        let bundles: BTreeSet<_> = read.chain([&self.published]).collect();
        let leaves = [Some(&self.secret), Some(&self.served).filter(|leaf| leaf.leaf != self.secret.leaf)];
        for leaf in leaves.into_iter().flatten() {
            for bundle in &bundles {
                assert_eq!(accepts(bundle, leaf, self.now), Ok(()), "{}: {:?}", self.now, self.changes);
            }
        }
        assert!(authorities(&self.secret) <= 2, "{}: {:?}", self.now, self.changes);
    }
}

#[test]
fn whoever_has_read_the_bundle_in_the_last_three_years_accepts_every_leaf_for_fifteen_years() {
    let seeds = std::env::var("VK_SEEDS").map_or(3, |seeds| seeds.parse().unwrap());
    let first = std::env::var("VK_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in first.map_or(0..seeds, |seed| seed..seed + 1) {
        println!("seed {seed}");
        let mut world = World::new(seed);
        while world.now < after(start(), year(YEARS)) {
            world.step();
        }
        let count = |is: fn(&Change) -> bool| world.changes.iter().filter(|change| is(change)).count();
        let rotations = [
            count(|it| matches!(it, Change::NextCaAdded { .. })),
            count(|it| *it == Change::NextCaIssues),
            count(Change::is_repair),
        ];
        assert_eq!(rotations, [2, 1, 0], "seed {seed}: {:?}", world.changes);
        let leaves = count(|it| *it == Change::LeafRenewed);
        assert!((60..=91).contains(&leaves), "seed {seed}: {leaves} leaves");
    }
}
