//! The state of one copy and its next step.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use vk_kube::Error;
use vk_provider::PodRef;
use vk_supervisor::Backoff;

use super::{
    Kind,
    diff::{DesiredCopy, Difference, ObservedCopy, UpperRef},
};

/// Delay before a failed call is retried.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_mins(1));
/// Delay before a foreign object is read again, in case it was deleted.
const FOREIGN_BACKOFF: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(5));

/// Delay before the same content is written again, when somebody keeps reverting it.
const REPAIR_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// After this long without a repair, the delay starts from the beginning.
const REPAIR_RESET: Duration = Duration::from_mins(2);
/// A copy that a lower pod still refers to is checked again after this and the grace period.
const IN_USE_RECHECK: Duration = Duration::from_mins(4);

/// A call on a lower object.
#[derive(Clone, Debug, PartialEq)]
pub enum LowerCall {
    /// Creates the object, with this owner reference if there is one.
    Create(Arc<DesiredCopy>, Option<OwnerReference>),
    /// Patches this version of the object to the desired state.
    Patch(Box<ObservedCopy>, Arc<DesiredCopy>),
    /// Deletes the object with this UID.
    Delete(String),
    /// Reads the object.
    Read,
    /// Checks whether a lower pod of our upper cluster refers to the object.
    CheckUse,
}

/// What is known about the upper object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UpperState {
    Unknown,
    /// The object does not exist. The empty copy, if its kind has one, reserves the name for pods that can run without it.
    Absent(Option<Arc<DesiredCopy>>),
    /// The object exists but must not be copied: an existing copy stays as it is.
    Skipped,
    Present(Arc<DesiredCopy>),
}

/// What is known about the lower object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LowerState {
    Unknown,
    Absent,
    Present(Box<ObservedCopy>),
}

/// The next step for a copy.
#[derive(Debug, PartialEq)]
pub(super) enum NextStep {
    /// Nothing to do before this time.
    Wait(Option<Duration>),
    Call(LowerCall),
    /// The lower namespace has to exist before the object can be created.
    EnsureNamespace,
    /// The entry is no longer needed.
    Forget,
}

/// One copy.
#[derive(Debug)]
pub(super) struct CopyState {
    pub(super) kind: Kind,
    pub(super) source: UpperRef,
    /// The pods that refer to it.
    pub(super) pods: BTreeSet<PodRef>,
    /// Those of them that cannot run without it.
    required_by: BTreeSet<PodRef>,
    /// The pods that already got a warning about it.
    pub(super) notified: BTreeSet<PodRef>,
    pub(super) upper: UpperState,
    pub(super) lower: LowerState,
    /// The lower state, or the result of a call in flight, may be outdated: the object has to be read.
    pub(super) stale: bool,
    /// The newest known resource version of the lower object, including that of its deletion.
    pub(super) newest: u64,
    pub(super) watched: bool,
    pub(super) in_flight: Option<LowerCall>,
    pub(super) not_before: Duration,
    pub(super) backoff: Backoff,
    foreign: Backoff,
    repairs: Backoff,
    /// The content of the last write.
    last_written: Option<Arc<DesiredCopy>>,
    /// Since when no pod refers to it.
    unused_since: Duration,
    /// No lower pod refers to it either.
    confirmed_unused: bool,
    /// The error of the last call.
    pub(super) last_error: Option<Error>,
    /// When the entry has to be looked at again.
    pub(super) due: Option<Duration>,
}

// === impl CopyState ===

impl CopyState {
    pub(super) fn new(kind: Kind, source: UpperRef, now: Duration) -> Self {
        Self {
            kind,
            source,
            pods: BTreeSet::new(),
            required_by: BTreeSet::new(),
            notified: BTreeSet::new(),
            upper: UpperState::Unknown,
            // Nothing is done before the copies were listed. An object that was not in the list does not exist or is not ours.
            lower: LowerState::Absent,
            stale: false,
            newest: 0,
            watched: false,
            in_flight: None,
            not_before: Duration::ZERO,
            backoff: BACKOFF,
            foreign: FOREIGN_BACKOFF,
            repairs: REPAIR_BACKOFF,
            last_written: None,
            unused_since: now,
            confirmed_unused: false,
            last_error: None,
            due: None,
        }
    }

    pub(super) fn add_pod(&mut self, pod: PodRef, required: bool, now: Duration) {
        if required {
            self.required_by.insert(pod.clone());
        } else {
            self.required_by.remove(&pod);
        }
        self.pods.insert(pod);
        self.confirmed_unused = false;
        // The pod asks again: perhaps the foreign object is gone.
        if self.is_foreign() {
            self.not_before = now;
            self.stale = true;
        }
        self.verify_absence();
    }

    /// Has the lower object read if nothing will be created in its place: only a read tells an absent object from a foreign one.
    pub(super) fn verify_absence(&mut self) {
        let absent = matches!(self.upper, UpperState::Absent(_) | UpperState::Skipped);
        self.stale |= absent && self.own_copy().is_none() && !self.required_by.is_empty();
    }

    pub(super) fn remove_pod(&mut self, pod: &PodRef, now: Duration) {
        self.notified.remove(pod);
        self.required_by.remove(pod);
        if self.pods.remove(pod) && self.pods.is_empty() {
            self.unused_since = now;
            self.confirmed_unused = false;
        }
    }

    /// The lower object, if it is the copy of our upper object.
    pub(super) fn own_copy(&self) -> Option<&ObservedCopy> {
        match &self.lower {
            LowerState::Present(found) if found.source.as_ref() == Some(&self.source) => Some(found),
            _ => None,
        }
    }

    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.lower, LowerState::Present(_)) && self.own_copy().is_none()
    }

    /// The state to write. A copy whose upper object was deleted stays as it is while pods need it, because its name must not become free
    /// for an object of somebody else; where no pod needs it, it is emptied, which is the same as a missing object to a kubelet.
    fn desired(&self) -> Option<&Arc<DesiredCopy>> {
        match &self.upper {
            UpperState::Present(desired) => Some(desired),
            UpperState::Absent(empty) => {
                let reserve = self.own_copy().is_none() && self.pods.len() > self.required_by.len();
                empty.as_ref().filter(|_| reserve || self.required_by.is_empty())
            }
            UpperState::Unknown | UpperState::Skipped => None,
        }
    }

    /// Whether the copy follows the upper object.
    fn is_maintained(&self) -> bool {
        !self.pods.is_empty() || !self.kind.is_removed_with_pods()
    }

    pub(super) fn next_step(
        &self,
        now: Duration,
        owner_reference: Option<&OwnerReference>,
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
            _ if self.stale => return NextStep::Call(LowerCall::Read),
            LowerState::Unknown => return NextStep::Call(LowerCall::Read),
            // Deletion takes as long as the finalizers do.
            LowerState::Present(found) if found.deleting && self.own_copy().is_some() => {
                return NextStep::Call(LowerCall::Read);
            }
            _ => {}
        }
        if !self.is_maintained() {
            return self.next_step_without_pods(now, grace);
        }
        match (self.desired(), self.own_copy()) {
            (Some(desired), Some(found)) => match found.compare(desired) {
                Difference::None => NextStep::Wait(None),
                Difference::Change => {
                    NextStep::Call(LowerCall::Patch(Box::new(found.clone()), Arc::clone(desired)))
                }
                Difference::Replace => NextStep::Call(LowerCall::Delete(found.uid.clone())),
            },
            (Some(desired), None) => match owner_reference {
                Some(owner_reference) => {
                    let owner_reference = OwnerReference { controller: None, ..owner_reference.clone() };
                    let owner_reference = Some(owner_reference).filter(|_| self.kind.has_owner());
                    NextStep::Call(LowerCall::Create(Arc::clone(desired), owner_reference))
                }
                None => NextStep::EnsureNamespace,
            },
            // The lower API server keeps a claim that pods use, whoever deletes it.
            (None, Some(found))
                if matches!(self.upper, UpperState::Absent(_)) && !self.kind.is_removed_with_pods() =>
            {
                NextStep::Call(LowerCall::Delete(found.uid.clone()))
            }
            (None, _) => NextStep::Wait(None),
        }
    }

    fn next_step_without_pods(&self, now: Duration, grace: Duration) -> NextStep {
        let Some(found) = self.own_copy() else { return NextStep::Forget };
        let end = self.unused_since + grace;
        if now < end {
            return NextStep::Wait(Some(end));
        }
        NextStep::Call(if self.confirmed_unused {
            LowerCall::Delete(found.uid.clone())
        } else {
            LowerCall::CheckUse
        })
    }

    /// Whether a copy of ours exists or may exist in the lower cluster.
    fn may_exist(&self) -> bool {
        self.lower == LowerState::Unknown || self.own_copy().is_some()
    }

    /// Records the lower object unless a newer version is known: the watch lags behind our writes, and the answer to a slow write lags
    /// behind the watch.
    pub(super) fn observe(&mut self, found: ObservedCopy) {
        if found.version > self.newest {
            self.newest = found.version;
            self.lower = LowerState::Present(Box::new(found));
        }
    }

    /// Records that the lower object was deleted.
    pub(super) fn observe_deleted(&mut self, version: u64) {
        if version >= self.newest {
            self.newest = version;
            self.lower = LowerState::Absent;
        }
    }

    /// Handles the answer to a read.
    pub(super) fn handle_read(
        &mut self,
        found: Option<ObservedCopy>,
        now: Duration,
        rng: &mut rand::rngs::StdRng,
    ) {
        self.last_error = None;
        let Some(found) = found else {
            self.lower = LowerState::Absent;
            // Somebody creates and deletes the object repeatedly.
            if self.backoff.failures() > 1 {
                self.not_before = now + self.backoff.next(None, rng);
            }
            return;
        };
        if found.version < self.newest {
            // The object changed in the meantime. The next read returns the current state.
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

    /// Handles the answer to a use check.
    pub(super) fn handle_use_check(&mut self, used: bool, now: Duration) {
        self.confirmed_unused = !used;
        if used {
            self.unused_since = now + IN_USE_RECHECK;
        }
    }

    /// Records a write. The first write happens at once. Repeated writes of the same content mean that somebody reverts them, so they are
    /// delayed.
    pub(super) fn record_write(&mut self, call: &LowerCall, now: Duration, rng: &mut rand::rngs::StdRng) {
        let (LowerCall::Create(desired, _) | LowerCall::Patch(_, desired)) = call else { return };
        if self.last_written.as_ref() == Some(desired) {
            if now > self.not_before + REPAIR_RESET {
                self.repairs.reset();
            }
            self.not_before = now + self.repairs.next(None, rng);
        } else {
            self.repairs.reset();
        }
        self.last_written = Some(Arc::clone(desired));
    }

    /// Whether a pod that refers to the copy can be created.
    pub(super) fn readiness(&self, pod: &PodRef) -> Readiness {
        let reading = self.stale || matches!(self.in_flight, Some(LowerCall::Read));
        if self.upper == UpperState::Unknown || self.lower == LowerState::Unknown || reading {
            return self.unready();
        }
        // A service account is the one that the operator named, whoever created it.
        if self.is_foreign() {
            return if self.kind == Kind::ServiceAccount { Readiness::Ready } else { Readiness::Conflict };
        }
        let exists = matches!(self.upper, UpperState::Present(_))
            || (self.upper == UpperState::Skipped && self.own_copy().is_some());
        if !exists && self.required_by.contains(pod) {
            return Readiness::Missing;
        }
        let ready = match (self.desired(), self.own_copy()) {
            (_, None) => false,
            (_, Some(found)) if found.deleting => false,
            (None, Some(_)) => true,
            // A claim only has to be that of the upper claim: to change it may take long.
            (Some(desired), Some(found)) if self.kind == Kind::Claim => {
                found.compare(desired) != Difference::Replace
            }
            (Some(desired), Some(found)) => found.compare(desired) == Difference::None,
        };
        if ready { Readiness::Ready } else { self.unready() }
    }

    fn unready(&self) -> Readiness {
        self.last_error.clone().map_or(Readiness::Waiting, Readiness::Failed)
    }
}

/// Whether the copies that a pod needs are in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Every name that the pod refers to is a copy of ours that is up to date.
    Ready,
    /// Some copies are missing.
    Waiting,
    /// An object that the pod cannot run without does not exist in the upper cluster.
    Missing,
    /// Some copies are missing and the last attempt failed.
    Failed(Error),
    /// An object of somebody else has the name of a copy.
    Conflict,
}
