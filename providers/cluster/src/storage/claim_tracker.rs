//! The synchronous state machine that decides which claims are provisioned, when to retry, and which events are recorded.

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

/// Delay before a failed attempt is retried.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// A claim that still waits after this is provisioned again, in case somebody deleted its volume.
const RECHECK: Duration = Duration::from_mins(1);
/// From this number of failures on, temporary errors are recorded too.
const REPORT_FAILURES: u32 = 3;
/// The maximum length of an error message.
const MAX_ERROR: usize = 900;

/// Identifies an upper claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClaimKey {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// An input of the state machine.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A deadline has passed.
    Tick,
    /// An upper claim for which our node was chosen was observed.
    Upper(ClaimKey, Arc<PersistentVolumeClaim>),
    /// The claim was deleted, or another node was chosen.
    UpperGone(ClaimKey),
    /// A copy was observed. The flag says whether it was in the first list.
    Lower(ClaimCopy, bool),
    /// The copy of the claim with this UID was deleted.
    LowerGone(String),
    /// Provisioning of the claim with this UID finished.
    ProvisionFinished(ClaimKey, String, Result<ProvisionOutcome, Error>),
}

/// The outcome of provisioning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProvisionOutcome {
    /// The claim is not ours to serve.
    Nothing,
    /// A volume of this name was created.
    Made(String),
    /// The volume exists already.
    There,
    /// A foreign volume has the name.
    Taken(String),
    /// The claim cannot be served, for this reason.
    Mistake(String),
}

/// An output of the state machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Provision the claim according to its class.
    Provision(Arc<PersistentVolumeClaim>),
    /// Record an event about the claim.
    RecordEvent { claim: Arc<PersistentVolumeClaim>, severity: Severity, reason: String, message: String },
}

/// Tracks the claims of one virtual node.
#[derive(Debug)]
pub(super) struct ClaimTracker {
    claims: BTreeMap<ClaimKey, TrackedClaim>,
    /// What was reported about copies, by the UID of the upper claim.
    copies: BTreeMap<String, ReportedCopy>,
    rng: StdRng,
}

/// An upper claim.
#[derive(Debug)]
struct TrackedClaim {
    object: Arc<PersistentVolumeClaim>,
    in_flight: bool,
    /// Nothing remains to be done.
    done: bool,
    not_before: Duration,
    backoff: Backoff,
}

/// What was reported about a copy.
#[derive(Debug, Default)]
struct ReportedCopy {
    reported: BTreeSet<ClaimFact>,
    capacity: Option<Quantity>,
}

// === impl ClaimKey ===

impl ClaimKey {
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

    /// Handles an event and returns the actions to take.
    pub(super) fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Tick => {
                for claim in self.claims.values_mut() {
                    claim.advance(now, &mut actions);
                }
            }
            Event::Upper(key, object) => {
                let claim = self.claims.entry(key).or_insert_with(|| TrackedClaim::new(Arc::clone(&object)));
                // A claim with another UID or class is another claim.
                if claim.object.metadata.uid != object.metadata.uid
                    || volume::class(&claim.object) != volume::class(&object)
                {
                    *claim = TrackedClaim::new(Arc::clone(&object));
                }
                claim.object = object;
                claim.advance(now, &mut actions);
            }
            Event::UpperGone(key) => drop(self.claims.remove(&key)),
            Event::Lower(copy, before) => self.observe_copy(copy, before, &mut actions),
            Event::LowerGone(uid) => drop(self.copies.remove(&uid)),
            Event::ProvisionFinished(key, uid, outcome) => {
                if let Some(claim) = self.claims.get_mut(&key)
                    && claim.object.metadata.uid.as_deref() == Some(&uid)
                {
                    claim.handle_outcome(now, outcome, &mut self.rng, &mut actions);
                    claim.advance(now, &mut actions);
                }
            }
        }
        actions
    }

    /// When to send [`Event::Tick`].
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.claims.values().filter(|claim| claim.is_pending()).map(|claim| claim.not_before).min()
    }

    /// Reports what is new about a copy. Conditions in the first list were reported by an earlier process.
    fn observe_copy(&mut self, copy: ClaimCopy, before: bool, actions: &mut Vec<Action>) {
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
            tell(Severity::Normal, "Resized", &format!("the claim now has {new} (lower)"));
        }
        // A condition that disappears is reported again when it comes back.
        below.reported = copy.facts.into_iter().collect();
        below.capacity = copy.capacity.or(below.capacity);
    }
}

// === impl TrackedClaim ===

impl TrackedClaim {
    fn new(object: Arc<PersistentVolumeClaim>) -> Self {
        Self { object, in_flight: false, done: false, not_before: Duration::ZERO, backoff: BACKOFF }
    }

    /// Whether the claim still has to be provisioned.
    fn is_pending(&self) -> bool {
        !self.in_flight && !self.done && volume::is_waiting(&self.object)
    }

    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.is_pending() && now >= self.not_before {
            self.in_flight = true;
            actions.push(Action::Provision(Arc::clone(&self.object)));
        }
    }

    fn handle_outcome(
        &mut self,
        now: Duration,
        outcome: Result<ProvisionOutcome, Error>,
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
                    ProvisionOutcome::Nothing | ProvisionOutcome::There => {}
                    ProvisionOutcome::Made(name) => tell(
                        Severity::Normal,
                        "ProvisioningSucceeded",
                        format!("created volume {name} as the placeholder of a volume in the lower cluster"),
                    ),
                    ProvisionOutcome::Taken(name) => tell(
                        Severity::Warning,
                        "ProvisioningFailed",
                        format!(
                            "volume {name} already exists and does not belong to this claim: it is left as it is"
                        ),
                    ),
                    ProvisionOutcome::Mistake(message) => {
                        tell(Severity::Warning, "ProvisionedAbove", message.clone());
                    }
                }
                self.done = matches!(outcome, ProvisionOutcome::Nothing | ProvisionOutcome::Mistake(_));
                self.backoff.reset();
                self.not_before = now + RECHECK;
            }
            Err(error) => {
                let wait = self.backoff.next(error.retry_after, rng);
                let refused = matches!(error.kind, ErrorKind::Forbidden | ErrorKind::Invalid);
                // A lasting error is recorded again with growing delay, which increments the count of the same event.
                if refused || self.backoff.failures() >= REPORT_FAILURES {
                    let message =
                        format!("create a volume for the claim: {}", truncate(&error.to_string(), MAX_ERROR));
                    tell(Severity::Warning, "ProvisioningFailed", message);
                }
                self.not_before = now + wait;
            }
        }
    }
}
