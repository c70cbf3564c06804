//! Which claims are looked at, when again, and what is said about them: a synchronous machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use rand::rngs::StdRng;
use vk_kube::{Error, Kind as ErrorKind, event::Severity};
use vk_provider::Quantity;
use vk_supervisor::Backoff;

use super::{
    claim_copy::{ClaimCopy, ClaimFact},
    volume,
};
use crate::status::truncate;

#[cfg(test)]
mod tests;

/// How soon and how seldom it is tried again what failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// After this, a claim that still waits is looked at again: perhaps somebody deleted its volume.
const AGAIN: Duration = Duration::from_mins(1);
/// From then on, also failures are reported that may be everyday pod_plan.
const PATIENCE: u32 = 3;
/// The words of a server that refuses.
const LONGEST: usize = 900;

/// Where an upper claim is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What happens.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Time passes.
    Tick,
    /// An upper claim for which our node was chosen was seen.
    Upper(Key, Arc<PersistentVolumeClaim>),
    /// It is gone, or another node was chosen.
    UpperGone(Key),
    /// A copy was seen, and whether it was so before we began.
    Lower(ClaimCopy, bool),
    /// The copy of the claim with this UID is gone.
    LowerGone(String),
    /// A claim with this UID was looked at.
    ProvisionFinished(Key, String, Result<Outcome, Error>),
}

/// What became of a claim that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is none of our business.
    Nothing,
    /// It has a volume of this name now.
    Made(String),
    /// It had one already.
    There,
    /// Somebody else's volume has the name that its volume would have.
    Taken(String),
    /// It cannot be served, and the user has to know why.
    Mistake(String),
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Look at its class, and serve it.
    Provision(Arc<PersistentVolumeClaim>),
    /// Say something about it.
    RecordEvent { claim: Arc<PersistentVolumeClaim>, severity: Severity, reason: String, message: String },
}

/// Keeps the claims of one virtual node.
#[derive(Debug)]
pub(super) struct ClaimTracker {
    claims: BTreeMap<Key, Claim>,
    /// What is known below, by the UID of the upper claim.
    copies: BTreeMap<String, CopyReport>,
    rng: StdRng,
}

/// An upper claim.
#[derive(Debug)]
struct Claim {
    object: Arc<PersistentVolumeClaim>,
    in_flight: bool,
    /// Whether there is nothing to be done about it, whatever comes.
    done: bool,
    not_before: Duration,
    backoff: Backoff,
}

/// What was said about a copy.
#[derive(Debug, Default)]
struct CopyReport {
    reported: BTreeSet<ClaimFact>,
    capacity: Option<Quantity>,
}

// === impl Key ===

impl Key {
    pub(super) fn of(claim: &PersistentVolumeClaim) -> Option<Self> {
        let metadata = &claim.metadata;
        Some(Self { namespace: metadata.namespace.clone()?, name: metadata.name.clone()? })
    }
}

// === impl ClaimTracker ===

impl ClaimTracker {
    pub(super) fn new(rng: StdRng) -> Self {
        Self { claims: BTreeMap::new(), copies: BTreeMap::new(), rng }
    }

    /// Something happened. Answers what is to be done.
    pub(super) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {
                for claim in self.claims.values_mut() {
                    claim.advance(now, &mut actions);
                }
            }
            Event::Upper(key, object) => {
                let claim = self.claims.entry(key).or_insert_with(|| Claim::new(Arc::clone(&object)));
                // One of the same name is another one, and so is one of another class.
                if claim.object.metadata.uid != object.metadata.uid
                    || volume::class(&claim.object) != volume::class(&object)
                {
                    *claim = Claim::new(Arc::clone(&object));
                }
                claim.object = object;
                claim.advance(now, &mut actions);
            }
            Event::UpperGone(key) => drop(self.claims.remove(&key)),
            Event::Lower(copy, before) => self.see(copy, before, &mut actions),
            Event::LowerGone(uid) => drop(self.copies.remove(&uid)),
            Event::ProvisionFinished(key, uid, outcome) => {
                if let Some(claim) = self.claims.get_mut(&key)
                    && claim.object.metadata.uid.as_deref() == Some(&uid)
                {
                    claim.take(now, outcome, &mut self.rng, &mut actions);
                    claim.advance(now, &mut actions);
                }
            }
        }
        actions
    }

    /// When there is something to do without anything happening.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.claims.values().filter(|claim| claim.is_open()).map(|claim| claim.not_before).min()
    }

    /// Says what is new about a copy. What held before we began was said before.
    fn see(&mut self, copy: ClaimCopy, before: bool, actions: &mut Vec<Action>) {
        let claim = self.claims.get(&copy.source).map(|claim| &claim.object);
        let claim = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&copy.uid));
        let below = self.copies.entry(copy.uid).or_default();
        let mut tell = |severity, reason: &str, message: &str| {
            if let Some(claim) = claim.filter(|_| !before) {
                let (claim, reason, message) = (Arc::clone(claim), reason.to_owned(), message.to_owned());
                actions.push(Action::RecordEvent { claim, severity, reason, message });
            }
        };
        for fact in copy.facts.iter().filter(|fact| !below.reported.contains(*fact)) {
            tell(fact.severity(), &fact.reason, &fact.message);
        }
        if let (Some(old), Some(new)) = (below.capacity, copy.capacity)
            && new > old
        {
            tell(Severity::Normal, "Resized", &format!("the claim has {new} now (lower)"));
        }
        // What holds no more is reported anew when it holds again.
        below.reported = copy.facts.into_iter().collect();
        below.capacity = copy.capacity.or(below.capacity);
    }
}

// === impl Claim ===

impl Claim {
    fn new(object: Arc<PersistentVolumeClaim>) -> Self {
        Self { object, in_flight: false, done: false, not_before: Duration::ZERO, backoff: BACKOFF }
    }

    /// Whether something remains to be done.
    fn is_open(&self) -> bool {
        !self.in_flight && !self.done && volume::is_waiting(&self.object)
    }

    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.is_open() && now >= self.not_before {
            self.in_flight = true;
            actions.push(Action::Provision(Arc::clone(&self.object)));
        }
    }

    fn take(
        &mut self,
        now: Duration,
        outcome: Result<Outcome, Error>,
        rng: &mut StdRng,
        actions: &mut Vec<Action>,
    ) {
        self.in_flight = false;
        let mut tell = |severity, reason: &str, message: String| {
            let (claim, reason) = (Arc::clone(&self.object), reason.to_owned());
            actions.push(Action::RecordEvent { claim, severity, reason, message });
        };
        match outcome {
            Ok(outcome) => {
                match &outcome {
                    Outcome::Nothing | Outcome::There => {}
                    Outcome::Made(name) => tell(
                        Severity::Normal,
                        "ProvisioningSucceeded",
                        format!("the volume {name} stands for one of the lower cluster"),
                    ),
                    Outcome::Taken(name) => tell(
                        Severity::Warning,
                        "ProvisioningFailed",
                        format!(
                            "there is a volume {name} already that does not belong to this claim: it is left as it is"
                        ),
                    ),
                    Outcome::Mistake(message) => {
                        tell(Severity::Warning, "ProvisionedAbove", message.clone());
                    }
                }
                self.done = matches!(outcome, Outcome::Nothing | Outcome::Mistake(_));
                self.backoff.reset();
                self.not_before = now + AGAIN;
            }
            Err(error) => {
                let wait = self.backoff.next(error.retry_after, rng);
                let refused = matches!(error.kind, ErrorKind::Forbidden | ErrorKind::Invalid);
                // Trouble that stays is said again with growing patience; it counts up on the same event.
                if refused || self.backoff.failures() >= PATIENCE {
                    let message =
                        format!("make a volume for the claim: {}", truncate(&error.to_string(), LONGEST));
                    tell(Severity::Warning, "ProvisioningFailed", message);
                }
                self.not_before = now + wait;
            }
        }
    }
}
