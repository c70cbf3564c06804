//! The state of one copy.

mod lower_call;
mod next_step;
mod readiness;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use vk_kube::Error;
use vk_provider::PodRef;
use vk_supervisor::Backoff;

pub(super) use self::next_step::NextStep;
pub use self::{
    lower_call::{Deletion, LowerCall, UseCheck},
    readiness::Readiness,
};
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

/// What is known about the upper object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UpperState {
    Unknown,
    /// The object does not exist. The empty copy, if its kind has one, reserves the name for pods that can run without it.
    Absent(Option<Arc<DesiredCopy>>),
    /// The object with this UID exists but must not be copied: an existing copy of it stays as it is.
    Skipped(String),
    Present(Arc<DesiredCopy>),
}

/// What is known about the lower object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LowerState {
    Unknown,
    Absent,
    Present(Box<ObservedCopy>),
}

/// What is known about lower pods that use the copy, of other virtual nodes and of this one.
#[derive(Clone, Debug, PartialEq)]
enum Usage {
    Unknown,
    Used,
    Unused(UseCheck),
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
    usage: Usage,
    /// When lower pods are searched for one that uses it, if that matters then.
    pub(super) check_use_at: Duration,
    /// The error of the last call.
    pub(super) last_error: Option<Error>,
    /// When the entry has to be looked at again.
    pub(super) due: Option<Duration>,
}

// === impl CopyState ===

impl CopyState {
    pub(super) fn new(kind: Kind, source: UpperRef, check_use_at: Duration) -> Self {
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
            usage: Usage::Unknown,
            check_use_at,
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
        (self.usage, self.check_use_at) = (Usage::Unknown, now);
        // The pod asks again: perhaps the foreign object is gone.
        if self.is_foreign() {
            self.not_before = now;
            self.stale = true;
        }
        self.verify_absence();
    }

    /// Has the lower object read if nothing will be created in its place: only a read tells an absent object from a foreign one.
    pub(super) fn verify_absence(&mut self) {
        let absent = matches!(self.upper, UpperState::Absent(_) | UpperState::Skipped(_));
        self.stale |= absent && self.own_copy().is_none() && !self.required_by.is_empty();
    }

    pub(super) fn remove_pod(&mut self, pod: &PodRef, grace_end: Duration) {
        self.notified.remove(pod);
        self.required_by.remove(pod);
        if self.pods.remove(pod) && self.pods.is_empty() {
            (self.usage, self.check_use_at) = (Usage::Unknown, grace_end);
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

    /// The state to write. A copy whose upper object was deleted stays while pods refer to it, because its name must not become free for
    /// an object of somebody else. If there is no copy, an empty one takes the name for pods that can run without the object.
    fn desired(&self) -> Option<&Arc<DesiredCopy>> {
        match &self.upper {
            UpperState::Present(desired) => Some(desired),
            UpperState::Absent(empty) => {
                let reserve = self.own_copy().is_none() && self.pods.len() > self.required_by.len();
                empty.as_ref().filter(|_| reserve)
            }
            UpperState::Unknown | UpperState::Skipped(_) => None,
        }
    }

    /// The copy of a deleted object without which all known pods can run, and the empty state that tells them so, if no other lower pod
    /// needs it: to a kubelet an empty object is the same as a missing one. A copy that would have to be replaced stays as it is.
    fn emptied(&self) -> Option<(&ObservedCopy, &Arc<DesiredCopy>)> {
        let UpperState::Absent(Some(empty)) = &self.upper else { return None };
        let found = self.own_copy()?;
        let is_optional = !self.pods.is_empty() && self.required_by.is_empty();
        (is_optional && found.compare(empty) == Difference::Change).then_some((found, empty))
    }

    /// Whether the copy follows the upper object.
    fn is_maintained(&self) -> bool {
        !self.pods.is_empty() || !self.kind.is_removed_with_pods()
    }

    /// Whether the copy belongs to an upper object that is gone. A claim that must not be copied is not the one of the copy if it was
    /// deleted and created again: it must not get the data of the old one.
    fn is_source_gone(&self, found: &ObservedCopy) -> bool {
        match &self.upper {
            UpperState::Absent(_) => true,
            UpperState::Skipped(uid) => !found.fixed.is_empty() && found.fixed != *uid,
            UpperState::Unknown | UpperState::Present(_) => false,
        }
    }

    /// Whether a copy of ours exists or may exist in the lower cluster.
    fn may_exist(&self) -> bool {
        self.lower == LowerState::Unknown || self.own_copy().is_some()
    }

    /// Records the lower object unless a newer version is known: the watch lags behind our writes, and the answer to a slow write lags
    /// behind the watch.
    pub(super) fn observe(&mut self, found: ObservedCopy, grace_end: Duration) {
        if found.version > self.newest {
            self.newest = found.version;
            self.set_present(found, grace_end);
        }
    }

    /// Records the lower object. One that somebody else created has a grace period of its own, because a copy exists before its first pod.
    /// If it is a claim that does not exist as far as we know, the upper claim has to be read again: another virtual node has seen it.
    fn set_present(&mut self, found: ObservedCopy, grace_end: Duration) {
        let is_known = matches!(&self.lower, LowerState::Present(known) if known.uid == found.uid);
        if !is_known && self.pods.is_empty() {
            self.check_use_at = grace_end;
        }
        self.lower = LowerState::Present(Box::new(found));
        let is_own_claim = !self.kind.is_removed_with_pods() && self.own_copy().is_some();
        if !is_known && is_own_claim && matches!(self.upper, UpperState::Absent(_)) {
            (self.upper, self.watched) = (UpperState::Unknown, false);
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
        (now, grace_end): (Duration, Duration),
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
        self.set_present(found, grace_end);
        if self.is_foreign() {
            self.not_before = now + self.foreign.next(None, rng);
        } else if deleting {
            self.not_before = now + self.backoff.next(None, rng);
        }
    }

    /// Handles the answer to a use check. A copy in use is checked again later.
    pub(super) fn handle_use_check(&mut self, check: UseCheck, used: bool, check_again_at: Duration) {
        self.usage = if used { Usage::Used } else { Usage::Unused(check) };
        if used {
            self.check_use_at = check_again_at;
        }
    }

    /// Handles that the upper object changed: an answer about its use is too old to act on.
    pub(super) fn handle_upper_change(&mut self, upper: UpperState, now: Duration) {
        (self.upper, self.usage) = (upper, Usage::Unknown);
        self.verify_absence();
        if !self.pods.is_empty() {
            self.check_use_at = now;
        }
    }

    /// Handles the end of a call, whatever came of it: the answer to a use check counts for the next call only.
    pub(super) fn handle_call_end(&mut self, call: &LowerCall) {
        if matches!(call, LowerCall::Delete(_)) || matches!(self.usage, Usage::Unused(_)) {
            self.usage = Usage::Unknown;
        }
    }

    /// Handles that a pod appeared which uses the copy, before it was deleted.
    pub(super) fn handle_late_use(&mut self, check_again_at: Duration) {
        (self.usage, self.check_use_at) = (Usage::Used, check_again_at);
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
}
