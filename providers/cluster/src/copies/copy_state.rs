//! One copy, and what to do about it next.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_provider::PodRef;
use vk_supervisor::Backoff;

use super::{
    Kind,
    diff::{DesiredCopy, Difference, ObservedCopy, UpperRef},
};

/// How soon and how seldom a call that failed is made again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_mins(1));
/// How often somebody else's object is looked at again: perhaps it is gone.
const FOREIGN: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(5));

/// How often what was last_written is last_written again: somebody changes it back.
const REPAIRS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// After so much calm, a repair is the first one.
const CALM: Duration = Duration::from_mins(2);
/// What a lower pod still names is looked at again after this and the grace.
const USED: Duration = Duration::from_mins(4);

/// A call on a lower object.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Makes it, hung on the anchor where there is one given.
    Create(Arc<DesiredCopy>, Option<OwnerReference>),
    /// Makes this version of it what it shall be.
    Patch(Box<ObservedCopy>, Arc<DesiredCopy>),
    /// Deletes the one with this UID.
    Delete(String),
    /// Looks at it.
    Read,
    /// Looks whether a lower pod of our upper cluster names it.
    CheckUse,
}

/// What is known above.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UpperState {
    Unknown,
    Absent,
    /// It is there, and is not to be to_copy: what is below stays as it is.
    Skipped,
    Present(Arc<DesiredCopy>),
}

/// What is known below.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LowerState {
    Unknown,
    Absent,
    Present(Box<ObservedCopy>),
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(super) enum NextStep {
    /// Nothing, before this time.
    Wait(Option<Duration>),
    /// A call.
    Call(Call),
    /// To make it there has to be a namespace.
    EnsureNamespace,
    /// Nobody needs to know of it any more.
    Forget,
}

/// A copy.
#[derive(Debug)]
pub(super) struct CopyState {
    pub(super) kind: Kind,
    pub(super) source: UpperRef,
    /// The pods that name it.
    pub(super) pods: BTreeSet<PodRef>,
    /// Those of them that were notified about it.
    pub(super) notified: BTreeSet<PodRef>,
    pub(super) upper: UpperState,
    pub(super) lower: LowerState,
    /// What is known below may be old, and so may be what a call that is under way finds: somebody has to look.
    pub(super) stale: bool,
    /// The newest version below that was heard of, also of its end.
    pub(super) newest: u64,
    pub(super) watched: bool,
    pub(super) in_flight: Option<Call>,
    pub(super) not_before: Duration,
    pub(super) backoff: Backoff,
    foreign: Backoff,
    repairs: Backoff,
    /// What was last_written last.
    last_written: Option<Arc<DesiredCopy>>,
    /// Since when no pod names it.
    unused_since: Duration,
    /// No lower pod names it either.
    confirmed_unused: bool,
    /// What the last call said.
    pub(super) last_error: Option<Error>,
    /// When it is looked at again.
    pub(super) due: Option<Duration>,
}

// === impl CopyState ===

impl CopyState {
    pub(super) fn new(kind: Kind, source: UpperRef, now: Duration) -> Self {
        Self {
            kind,
            source,
            pods: BTreeSet::new(),
            notified: BTreeSet::new(),
            upper: UpperState::Unknown,
            // What is ours is heard of before anything is done. What is not heard of is not there, or not ours.
            lower: LowerState::Absent,
            stale: false,
            newest: 0,
            watched: false,
            in_flight: None,
            not_before: Duration::ZERO,
            backoff: BACKOFF,
            foreign: FOREIGN,
            repairs: REPAIRS,
            last_written: None,
            unused_since: now,
            confirmed_unused: false,
            last_error: None,
            due: None,
        }
    }

    pub(super) fn add_pod(&mut self, pod: PodRef) {
        self.pods.insert(pod);
        self.confirmed_unused = false;
    }

    pub(super) fn remove_pod(&mut self, pod: &PodRef, now: Duration) {
        self.notified.remove(pod);
        if self.pods.remove(pod) && self.pods.is_empty() {
            self.unused_since = now;
            self.confirmed_unused = false;
        }
    }

    /// The lower object, if it is the copy of our upper one.
    pub(super) fn own_copy(&self) -> Option<&ObservedCopy> {
        match &self.lower {
            LowerState::Present(found) if found.source.as_ref() == Some(&self.source) => Some(found),
            _ => None,
        }
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.lower, LowerState::Present(_)) && self.own_copy().is_none()
    }

    /// Whether the copy is kept as the upper object is.
    fn is_maintained(&self) -> bool {
        !self.pods.is_empty() || !self.kind.is_removed_with_pods()
    }

    pub(super) fn next_step(
        &self,
        now: Duration,
        anchor: Option<&OwnerReference>,
        grace: Duration,
    ) -> NextStep {
        if self.in_flight.is_some() {
            return NextStep::Wait(None);
        }
        if self.pods.is_empty() && !self.may_exist() {
            return NextStep::Forget;
        }
        if now < self.not_before {
            return NextStep::Wait(Some(self.not_before));
        }
        match &self.lower {
            _ if self.stale => return NextStep::Call(Call::Read),
            LowerState::Unknown => return NextStep::Call(Call::Read),
            // It takes as long as its finalizers do.
            LowerState::Present(found) if found.deleting && self.own_copy().is_some() => {
                return NextStep::Call(Call::Read);
            }
            _ => {}
        }
        if !self.is_maintained() {
            return self.next_step_without_pods(now, grace);
        }
        match (&self.upper, self.own_copy()) {
            (UpperState::Present(desired), Some(found)) => match found.against(desired) {
                Difference::None => NextStep::Wait(None),
                Difference::Change => {
                    NextStep::Call(Call::Patch(Box::new(found.clone()), Arc::clone(desired)))
                }
                Difference::Replace => NextStep::Call(Call::Delete(found.uid.clone())),
            },
            (UpperState::Absent, Some(found)) => NextStep::Call(Call::Delete(found.uid.clone())),
            (UpperState::Present(desired), None) => match anchor {
                Some(anchor) => {
                    let anchor = OwnerReference { controller: None, ..anchor.clone() };
                    let anchor = Some(anchor).filter(|_| self.kind.has_owner());
                    NextStep::Call(Call::Create(Arc::clone(desired), anchor))
                }
                None => NextStep::EnsureNamespace,
            },
            (UpperState::Absent, None) | (UpperState::Unknown | UpperState::Skipped, _) => {
                NextStep::Wait(None)
            }
        }
    }

    fn next_step_without_pods(&self, now: Duration, grace: Duration) -> NextStep {
        let Some(found) = self.own_copy() else { return NextStep::Forget };
        let end = self.unused_since + grace;
        if now < end {
            return NextStep::Wait(Some(end));
        }
        NextStep::Call(if self.confirmed_unused { Call::Delete(found.uid.clone()) } else { Call::CheckUse })
    }

    /// Whether there is something below that may be ours.
    fn may_exist(&self) -> bool {
        self.lower == LowerState::Unknown || self.own_copy().is_some()
    }

    /// Takes note of the lower object, unless something newer is known: the watch trails our writes, and the answer to a slow write
    /// trails the watch.
    pub(super) fn observe(&mut self, found: ObservedCopy) {
        if found.version > self.newest {
            self.newest = found.version;
            self.lower = LowerState::Present(Box::new(found));
        }
    }

    /// Takes note of its end.
    pub(super) fn observe_deleted(&mut self, version: u64) {
        if version >= self.newest {
            self.newest = version;
            self.lower = LowerState::Absent;
        }
    }

    /// Takes the answer to a look at it.
    pub(super) fn handle_read(
        &mut self,
        found: Option<ObservedCopy>,
        now: Duration,
        rng: &mut rand::rngs::StdRng,
    ) {
        self.last_error = None;
        let Some(found) = found else {
            self.lower = LowerState::Absent;
            // It comes and goes.
            if self.backoff.failures() > 1 {
                self.not_before = now + self.backoff.next(None, rng);
            }
            return;
        };
        if found.version < self.newest {
            // Something happened since. What is read next is true.
            self.newest = found.version;
            self.lower = LowerState::Unknown;
            return;
        }
        self.newest = found.version;
        let deleting = found.deleting;
        self.lower = LowerState::Present(Box::new(found));
        if self.is_foreign() {
            self.not_before = now + self.foreign.next(None, rng);
        } else if deleting {
            self.not_before = now + self.backoff.next(None, rng);
        }
    }

    /// A lower pod names it, or none does.
    pub(super) fn handle_use_check(&mut self, used: bool, now: Duration) {
        self.confirmed_unused = !used;
        if used {
            self.unused_since = now + USED;
        }
    }

    /// Something was last_written. The first time is at once; to write the same again and again means that somebody fights us.
    pub(super) fn record_write(&mut self, call: &Call, now: Duration, rng: &mut rand::rngs::StdRng) {
        let (Call::Create(desired, _) | Call::Patch(_, desired)) = call else { return };
        if self.last_written.as_ref() == Some(desired) {
            if now > self.not_before + CALM {
                self.repairs.reset();
            }
            self.not_before = now + self.repairs.next(None, rng);
        } else {
            self.repairs.reset();
        }
        self.last_written = Some(Arc::clone(desired));
    }

    /// How a pod that names it stands.
    pub(super) fn readiness(&self) -> Readiness {
        let ready = match (&self.upper, self.own_copy()) {
            (UpperState::Unknown, _) => false,
            (UpperState::Absent | UpperState::Skipped, _) => true,
            // A claim is there or not: what it asks for may take long to be given.
            (_, Some(found)) if self.kind == Kind::Claim => !found.deleting,
            (UpperState::Present(desired), Some(found)) => {
                !found.deleting && found.against(desired) == Difference::None
            }
            (UpperState::Present(_), None) => self.is_foreign(),
        };
        match &self.last_error {
            _ if ready => Readiness::Ready,
            Some(error) => Readiness::Failed(error.clone()),
            None => Readiness::Waiting,
        }
    }
}

/// How a pod stands with what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All that there is above is there below.
    Ready,
    /// Not yet.
    Waiting,
    /// Not yet, and the last attempt failed.
    Failed(Error),
}
