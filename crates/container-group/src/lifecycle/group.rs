//! One group: what was seen of it, whether it is being deleted, and how often it was missing.

mod inquiry;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

pub use self::inquiry::{Inquiry, PollRun};
use super::CallId;
use crate::backend::{GroupRef, GroupState, Observed};

/// How often a group has to be missing, before it is asked for by its id.
const ABSENCES: u32 = 2;
/// For how long a group that no list has ever shown is not believed to be gone for that reason.
const UNPROVEN: Duration = Duration::from_mins(15);
/// How long the end of a group is not told, because what the cloud says about it was not read yet.
const EXPLANATION_PATIENCE: Duration = Duration::from_mins(1);

/// A group of a pod.
#[derive(Debug)]
pub struct Group {
    observed: Observed,
    attempt: u32,
    /// When this process learned of it.
    since: Duration,
    /// When the cloud last showed it.
    seen: Duration,
    /// When anything of it but its events was last new.
    changed: Duration,
    /// When a call that asked for it showed it.
    checked: Option<Duration>,
    check_wanted: bool,
    absences: u32,
    /// Whether a list has to say whether it is missing: an answer that asked for it did not show it.
    list_wanted: bool,
    /// Whether a list or an answer that asked for it has ever shown it.
    is_confirmed: bool,
    /// When it was last missing.
    missed: Duration,
    removal: Removal,
    /// Whether it was reported as a duplicate.
    is_duplicate: bool,
    detail: Detail,
    /// Whether its pod has init containers.
    expects_init: bool,
    /// Whether only the answer to its create has shown it.
    is_new: bool,
}

/// Whether it is being deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Removal {
    No,
    Queued(CallId),
    InFlight(CallId),
    Failed { retry_at: Duration },
    Accepted { at: Duration, again_at: Duration },
}

/// Whether the cloud has to be asked for more than its lists show.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Detail {
    /// What was seen is all there is.
    Complete,
    /// A list has shown something new, at this time.
    Due(Duration),
    /// All was read at this time; lists show less, and nothing new.
    Read(Duration),
}

// === impl Group ===

impl Group {
    pub(super) fn new(now: Duration, attempt: u32, observed: Observed, by_id: bool) -> Self {
        let detail = if observed.complete { Detail::Complete } else { Detail::Due(now) };
        Self {
            observed,
            attempt,
            since: now,
            seen: now,
            changed: now,
            checked: by_id.then_some(now),
            check_wanted: false,
            absences: 0,
            list_wanted: false,
            is_confirmed: by_id,
            missed: Duration::ZERO,
            removal: Removal::No,
            is_duplicate: false,
            detail,
            expects_init: false,
            is_new: false,
        }
    }

    /// The group.
    pub fn group(&self) -> &GroupRef {
        &self.observed.group
    }

    /// The attempt that made it.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Everything that was seen of it.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Whether the cloud says that it has ended.
    pub fn has_ended(&self) -> bool {
        self.observed.state.is_some_and(GroupState::has_ended)
    }

    /// When this process learned of it.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// Whether it stays: nobody deletes it, as far as is known.
    pub fn is_kept(&self) -> bool {
        self.removal == Removal::No && !self.is_being_deleted()
    }

    /// Whether a delete was accepted, ours or that of another.
    pub fn is_removed(&self) -> bool {
        self.is_accepted() || self.is_being_deleted()
    }

    /// Whether only a list can say now whether it is there. An answer that asked for it is also empty where we may not see our groups, which
    /// a list shows by all that it lacks.
    pub fn wants_list(&self) -> bool {
        self.list_wanted
    }

    /// Whether that nothing but the answer to its create and the feed has shown it says that we may not see our groups. Not for ever: it may
    /// have gone before anything else could show it.
    pub fn is_unproven(&self, now: Duration) -> bool {
        !self.is_confirmed && now < self.since + UNPROVEN
    }

    /// A list has shown it.
    pub(crate) fn confirm(&mut self) {
        self.is_confirmed = true;
    }

    /// Whether it has ended, and what the cloud says about its end was not read yet.
    pub fn is_unexplained(&self) -> bool {
        self.has_ended() && !self.is_accepted() && matches!(self.detail, Detail::Due(_))
    }

    /// Whether what the cloud says about its end is read soon, and should be awaited.
    pub fn awaits_explanation(&self, now: Duration) -> bool {
        self.is_unexplained() && matches!(self.detail, Detail::Due(at) if now < at + EXPLANATION_PATIENCE)
    }

    /// Whether it was known to be there: a list that lacks it, and all others, is not believed.
    pub fn is_known(&self, now: Duration, consistency: Duration) -> bool {
        self.removal == Removal::No && !self.is_being_deleted() && self.may_be_missing(now, consistency)
    }

    /// Whether its disappearance would be a surprise.
    pub fn is_expected(&self, now: Duration, consistency: Duration) -> bool {
        self.is_known(now, consistency) && !self.has_ended()
    }

    /// Whether a list that does not show it means something: it is old enough to be in all lists.
    pub fn may_be_missing(&self, now: Duration, consistency: Duration) -> bool {
        now >= self.since + consistency
    }

    /// Whether it is on its way out, or was missing in a list.
    pub fn may_be_gone(&self) -> bool {
        self.is_leaving() || self.absences > 0
    }

    /// Whether only the cloud's silence about it is awaited.
    pub fn is_leaving(&self) -> bool {
        self.is_accepted() || self.observed.state == Some(GroupState::Deleting)
    }

    /// Whether it is on its way to another state, or asked for.
    pub fn is_changing(&self) -> bool {
        self.is_restless() || self.removal != Removal::No || self.absences > 0 || self.check_wanted
    }

    /// When a call that asked for it by its id showed it.
    pub fn checked(&self) -> Option<Duration> {
        self.checked
    }

    /// Its create was answered.
    pub(super) fn mark_created(&mut self) {
        self.is_new = self.observed.state.is_none();
    }

    pub(super) fn set_expects_init(&mut self, expects: bool) {
        self.expects_init = expects;
    }

    pub(super) fn want_check(&mut self) {
        self.check_wanted = true;
    }

    /// The order of groups: the oldest first. One whose age is not known was created just now.
    pub(super) fn age(&self) -> (bool, Option<Timestamp>, u32, &str) {
        let created = self.observed.created;
        (created.is_none(), created, self.attempt, &self.observed.group.id)
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.removal, Removal::Queued(_))
    }

    pub(super) fn removal_is(&self, id: CallId) -> bool {
        matches!(self.removal, Removal::Queued(called) | Removal::InFlight(called) if called == id)
    }

    pub(super) fn start_removal(&mut self, id: CallId) -> bool {
        let queued = self.removal == Removal::Queued(id);
        if queued {
            self.removal = Removal::InFlight(id);
        }
        queued
    }

    /// It is deleted because its pod has an older one. Returns whether that is new.
    pub(super) fn mark_duplicate(&mut self) -> bool {
        !std::mem::replace(&mut self.is_duplicate, true)
    }

    pub(super) fn set_removal(&mut self, removal: Removal) {
        self.removal = removal;
    }

    /// Lets a delete that has failed be repeated now.
    pub(super) fn retry_removal(&mut self) {
        if let Removal::Failed { .. } = self.removal {
            self.removal = Removal::No;
        }
    }

    /// Lets the delete of a duplicate be repeated, whatever became of the last one.
    pub(super) fn repeat_removal(&mut self) {
        self.removal = Removal::No;
    }

    /// Whether the delete of a duplicate is to be repeated: it failed, or was accepted and nothing came of it.
    pub(super) fn has_failed_removal(&self, now: Duration) -> bool {
        match self.removal {
            Removal::Failed { retry_at } => retry_at <= now,
            Removal::Accepted { again_at, .. } => {
                self.is_duplicate && !self.is_being_deleted() && again_at <= now
            }
            _ => false,
        }
    }

    pub(super) fn wants_removal(&self, now: Duration) -> bool {
        match self.removal {
            Removal::No => true,
            Removal::Failed { retry_at: at } | Removal::Accepted { again_at: at, .. } => at <= now,
            Removal::Queued(_) | Removal::InFlight(_) => false,
        }
    }

    /// When a delete is to be repeated; one that was accepted only if the pod is to stop, or has another group.
    pub(super) fn deadline(&self, stops: bool) -> Option<Duration> {
        match self.removal {
            Removal::Failed { retry_at } => Some(retry_at),
            Removal::Accepted { again_at, .. } => {
                Some(again_at).filter(|_| stops || (self.is_duplicate && !self.is_being_deleted()))
            }
            _ => None,
        }
    }

    /// It was seen. Returns whether anything but its events is new.
    pub(super) fn update(&mut self, now: Duration, newer: Observed, by_id: bool) -> bool {
        self.absences = 0;
        self.list_wanted = false;
        self.seen = now;
        if by_id {
            self.is_confirmed = true;
            self.checked = Some(now);
            self.check_wanted = false;
        }
        let complete = newer.complete;
        let was_unexplained = self.is_unexplained();
        let (before, was_starting) = (self.observed.clone(), self.is_starting());
        self.is_new = false;
        self.observed = before.clone().updated_by(newer);
        let same = |observed: &Observed| Observed {
            events: Vec::new(),
            malformed: Vec::new(),
            complete: true,
            ..observed.clone()
        };
        let changed = same(&before) != same(&self.observed);
        if changed {
            self.changed = now;
        }
        let has_started = was_starting && !self.is_starting();
        self.detail = match self.detail {
            _ if complete && by_id => Detail::Read(now),
            _ if complete => Detail::Complete,
            // Details that are not complete are all that there is.
            _ if by_id => Detail::Read(now),
            Detail::Read(at) if !changed => Detail::Read(at),
            Detail::Due(at) if !has_started => Detail::Due(at),
            _ => Detail::Due(now),
        };
        // That nothing more is to be said about its end is news, too.
        changed || (was_unexplained && !self.is_unexplained())
    }

    /// It was missing. Returns whether that is enough to believe that it is gone.
    pub(super) fn count_absence(&mut self, now: Duration, by_id: bool) -> bool {
        let enough = self.absences >= self.needed_absences() && by_id;
        // The first to miss it is a list, which was checked for what else it lacks.
        if !by_id || self.is_accepted() || self.absences > 0 {
            self.absences += 1;
        }
        self.list_wanted = by_id && self.absences == 0;
        self.missed = now;
        enough
    }

    fn is_accepted(&self) -> bool {
        matches!(self.removal, Removal::Accepted { .. })
    }

    fn is_being_deleted(&self) -> bool {
        matches!(self.observed.state, Some(GroupState::Deleting | GroupState::Deleted))
    }

    /// Whether it has not started yet, as far as is known.
    fn is_starting(&self) -> bool {
        self.is_new || matches!(self.observed.state, Some(GroupState::Accepted | GroupState::Provisioning))
    }

    /// Whether its state will soon be another, or is not known.
    fn is_restless(&self) -> bool {
        self.observed.state.is_none_or(GroupState::is_changing)
    }
}
