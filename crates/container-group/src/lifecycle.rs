//! The groups of one pod: a state machine.
//!
//! There should be one group while the pod is wanted, and none afterwards. The machine knows what was asked for ([`Goal`]), whether a
//! create is under way or in doubt ([`Creation`]), and the groups that were seen ([`Group`]); after every event it compares these and asks for
//! the next call. It has no clock, network or randomness of its own.
//!
//! A create whose outcome is not known puts the pod in doubt: until the group was looked up, nothing else is done for it.

mod action;
mod creation;
mod group;

use std::time::Duration;

use vk_provider::PodRef;

pub use self::{
    action::{Action, CallId, CallIds, Goal, Request, Surroundings},
    creation::Creation,
    group::{Group, Inquiry, PollRun},
};
use self::{creation::Doubt, group::Removal};
use crate::backend::{CallError, CallResult, Class, Deletion, GroupRef, GroupState, Idempotency, Observed};

/// How long a failed delete waits before the engine repeats it by itself.
const DELETE_RETRY: Duration = Duration::from_secs(10);
/// How long after an accepted delete it is repeated, if the group is still there. Longer than any usual grace period.
const DELETE_AGAIN: Duration = Duration::from_mins(10);
/// The grace period of a duplicate: it may have begun to work.
const DUPLICATE_GRACE: Duration = Duration::from_secs(30);

/// The groups of one pod.
#[derive(Debug)]
pub struct PodGroups {
    pod: PodRef,
    goal: Goal,
    creation: Creation,
    /// A create without an outcome that was repeated: it may still make the group.
    repeated: Option<Doubt>,
    groups: Vec<Group>,
    next_attempt: u32,
    /// When the delete of a duplicate was last found to have failed: what was seen before says nothing any more.
    delete_failed: Option<Duration>,
    create_waits: bool,
    delete_waits: bool,
    /// Whether an earlier process may have done something for this pod.
    inherited: bool,
    has_init_containers: bool,
}

// === impl PodGroups ===

impl PodGroups {
    /// A pod without groups. `inherited` says whether an earlier process may have created some.
    pub fn new(pod: PodRef, inherited: bool) -> Self {
        Self {
            pod,
            goal: Goal::Unspecified,
            creation: Creation::None,
            repeated: None,
            groups: Vec::new(),
            next_attempt: 1,
            delete_failed: None,
            create_waits: false,
            delete_waits: false,
            inherited,
            has_init_containers: false,
        }
    }

    /// Says whether the pod has init containers.
    pub fn set_init_containers(&mut self, has: bool) {
        self.has_init_containers = has;
        self.groups.iter_mut().for_each(|group| group.set_expects_init(has));
    }

    /// Another process may have done something for this pod.
    pub fn set_inherited(&mut self) {
        self.inherited = true;
    }

    /// A list has shown these groups.
    pub(crate) fn confirm(&mut self, seen: &std::collections::HashSet<std::sync::Arc<str>>) {
        let shown = self.groups.iter_mut().filter(|group| seen.contains(&group.group().id));
        shown.for_each(Group::confirm);
    }

    /// The pod.
    pub fn pod(&self) -> &PodRef {
        &self.pod
    }

    /// The goal.
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// The groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The create that is under way, if any.
    pub fn creation(&self) -> &Creation {
        &self.creation
    }

    /// The group that counts: the oldest that nobody deletes, else the oldest.
    pub fn main(&self) -> Option<&Group> {
        let kept = self.groups.iter().filter(|group| group.is_kept());
        kept.min_by_key(|group| group.age()).or_else(|| self.groups.iter().min_by_key(|group| group.age()))
    }

    /// Whether it is certain that nothing of the pod is in the cloud.
    pub fn is_absent(&self, synced: bool, certain: bool) -> bool {
        self.groups.is_empty()
            && self.creation == Creation::None
            && self.repeated.is_none()
            && synced
            && (certain || !self.inherited)
    }

    /// Whether nothing is left to remember.
    pub fn is_done(&self) -> bool {
        let stopped = matches!(self.goal, Goal::Stop { .. } | Goal::Unspecified);
        stopped
            && self.groups.is_empty()
            && self.creation == Creation::None
            && !self.delete_waits
            && !self.create_waits
    }

    /// Whether something is on its way to another state, so that the cloud should be watched closely.
    pub fn is_changing(&self) -> bool {
        let waits = self.create_waits || self.delete_waits;
        waits || self.creation != Creation::None || self.groups.iter().any(Group::is_changing)
    }

    /// Whether a call for it waits for the budget.
    pub fn is_queued(&self) -> bool {
        matches!(self.creation, Creation::Queued { .. }) || self.groups.iter().any(Group::is_queued)
    }

    /// When [`tick`](Self::tick) has something to do. Only a process that owns the node repeats writes.
    pub fn deadline(&self, leading: bool) -> Option<Duration> {
        match &self.creation {
            Creation::InDoubt(doubt) => return doubt.deadline(),
            Creation::InFlight { .. } => return None,
            _ if !leading => return None,
            _ => {}
        }
        let stops = matches!(self.goal, Goal::Stop { .. });
        self.groups.iter().filter_map(|group| group.deadline(stops)).min()
    }

    /// The core wants the pod.
    pub fn create(&mut self, around: &mut Surroundings<'_>) {
        self.goal = Goal::Run;
        self.create_waits = true;
        if self.creation == Creation::None {
            self.creation = Creation::Requested;
        }
        self.advance(around);
    }

    /// The core does not want the pod any more.
    pub fn delete(&mut self, around: &mut Surroundings<'_>, grace: Duration) {
        self.goal = Goal::Stop { grace };
        self.delete_waits = true;
        self.groups.iter_mut().for_each(Group::retry_removal);
        self.advance(around);
    }

    /// A call is about to be made, because the budget has a place for it: whether it is still wanted.
    pub fn start(&mut self, id: CallId, leading: bool) -> bool {
        match self.creation {
            Creation::Queued { id: queued, attempt } if queued == id => {
                if leading && self.goal == Goal::Run {
                    self.creation = Creation::InFlight { id, attempt };
                    return true;
                }
                return false;
            }
            _ => {}
        }
        leading && self.groups.iter_mut().any(|group| group.start_removal(id))
    }

    /// A call will not be made.
    pub fn abandoned(&mut self, around: &mut Surroundings<'_>, id: CallId) {
        let text = "the process no longer owns the node, or the pod is no longer wanted";
        let error = || CallError::unavailable(text);
        if matches!(self.creation, Creation::Queued { id: queued, .. } if queued == id) {
            self.creation = Creation::None;
            self.settle(around, Request::Create, Err(error()));
        }
        if let Some(group) = self.groups.iter_mut().find(|group| group.removal_is(id)) {
            group.set_removal(Removal::Failed { retry_at: around.now + DELETE_RETRY });
            self.settle(around, Request::Delete, Err(error()));
        }
        self.advance(around);
    }

    /// The answer to a create. `alternatives`: another placement can be tried.
    pub fn created(
        &mut self,
        around: &mut Surroundings<'_>,
        id: CallId,
        result: CallResult<Option<GroupRef>>,
        alternatives: bool,
    ) {
        let Creation::InFlight { id: called, attempt } = self.creation else { return };
        if called != id {
            return;
        }
        self.creation = Creation::None;
        match result {
            Ok(Some(group)) => {
                let id = std::sync::Arc::clone(&group.id);
                self.sighted(around, attempt, Observed::new(group), false);
                let made = self.groups.iter_mut().find(|group| group.group().id == id);
                made.into_iter().for_each(Group::mark_created);
                self.settle(around, Request::Create, Ok(()));
            }
            Ok(None) => {
                self.doubt(around, attempt, true);
                self.settle(around, Request::Create, Ok(()));
            }
            Err(error) => match error.class {
                Class::Ambiguous => self.doubt(around, attempt, false),
                // Another request had this token or name: its group may be there.
                Class::Conflict => {
                    self.doubt(around, attempt, false);
                    self.next_attempt = self.next_attempt.max(attempt + 1);
                }
                Class::OutOfStock | Class::ZoneOutOfStock => {
                    // Another placement is another request, which needs another token.
                    self.next_attempt = self.next_attempt.max(attempt + 1);
                    if alternatives && self.goal == Goal::Run {
                        self.creation = Creation::Requested;
                    } else {
                        self.settle(around, Request::Create, Err(error));
                    }
                }
                _ => self.settle(around, Request::Create, Err(error)),
            },
        }
        self.advance(around);
    }

    /// The answer to a delete.
    pub fn deleted(&mut self, around: &mut Surroundings<'_>, id: CallId, result: CallResult<Deletion>) {
        let Some(at) = self.groups.iter().position(|group| group.removal_is(id)) else { return };
        let group = &mut self.groups[at];
        let missing = matches!(&result, Ok(Deletion::Gone))
            || matches!(&result, Err(CallError { class: Class::NotFound, .. }));
        let retry = Removal::Failed { retry_at: around.now + DELETE_RETRY };
        match result {
            Ok(Deletion::Accepted) => {
                group.set_removal(Removal::Accepted { at: around.now, again_at: around.now + DELETE_AGAIN });
            }
            // Details will show whether it is really gone.
            _ if missing && group.may_be_missing(around.now, around.consistency) => {
                group.set_removal(Removal::Accepted {
                    at: Duration::ZERO,
                    again_at: around.now + DELETE_RETRY,
                });
            }
            // A young group may only not be visible yet.
            Ok(Deletion::Gone) | Err(CallError { class: Class::NotFound, .. }) => {
                group.set_removal(retry);
                let error = CallError::unavailable("the cloud does not show the group yet");
                self.settle(around, Request::Delete, Err(error));
            }
            Err(error) => {
                group.set_removal(retry);
                self.settle(around, Request::Delete, Err(error));
            }
        }
        self.advance(around);
    }

    /// The cloud shows a group of this pod; `by_id` if it was asked for. Returns whether anything but its events is new.
    pub fn sighted(
        &mut self,
        around: &mut Surroundings<'_>,
        attempt: u32,
        observed: Observed,
        by_id: bool,
    ) -> bool {
        self.next_attempt = self.next_attempt.max(attempt + 1);
        self.repeated = self.repeated.take().filter(|doubt| doubt.attempt != attempt);
        match &self.creation {
            Creation::InDoubt(doubt) if doubt.attempt == attempt => {
                self.creation = Creation::None;
                self.settle(around, Request::Create, Ok(()));
            }
            // It may be adopted instead.
            Creation::Queued { .. } => self.creation = Creation::Requested,
            _ => {}
        }
        let deleted = observed.state == Some(GroupState::Deleted);
        let known = self.groups.iter().position(|group| group.group().id == observed.group.id);
        let changed = match known {
            Some(at) if deleted => {
                self.remove(around, at);
                true
            }
            Some(at) => self.groups[at].update(around.now, observed, by_id),
            None if deleted => false,
            None => {
                let mut group = Group::new(around.now, attempt, observed, by_id);
                group.set_expects_init(self.has_init_containers);
                self.groups.push(group);
                true
            }
        };
        self.advance(around);
        changed
    }

    /// A complete list, or a call that asked for it, does not show a group.
    pub fn absent(&mut self, around: &mut Surroundings<'_>, id: &str, by_id: bool) {
        let Some(at) = self.groups.iter().position(|group| *group.group().id == *id) else { return };
        if !self.groups[at].may_be_missing(around.now, around.consistency) {
            return;
        }
        if self.groups[at].count_absence(around.now, by_id) {
            self.remove(around, at);
            self.advance(around);
        }
    }

    /// A lookup has ended; what it found was reported with [`sighted`](Self::sighted) before. `complete`: it would have shown the group.
    pub fn looked_up(&mut self, around: &mut Surroundings<'_>, id: CallId, complete: bool) {
        let next_attempt = self.next_attempt;
        let Creation::InDoubt(doubt) = &mut self.creation else { return };
        // After a conflict the next create has another token: it repeats nothing, and the doubt ends only when lists are up to date.
        let repeatable = around.idempotency != Idempotency::None
            && self.goal == Goal::Run
            && next_attempt <= doubt.attempt;
        if !doubt.looked_up(around.now, id, complete, around.consistency, repeatable) {
            return;
        }
        let failed_before = self.next_attempt > doubt.attempt;
        // A repeated create makes the same group, if the first one does so late. Until then its absence proves nothing.
        let doubt = doubt.clone();
        self.repeated = Some(doubt).filter(|doubt| !doubt.is_settled());
        self.creation = Creation::None;
        if self.create_waits && self.goal == Goal::Run && repeatable && !failed_before {
            // The same token: at worst this is the same group.
            self.creation = Creation::Requested;
        } else {
            let error = CallError::unavailable("the cloud has not created the group");
            self.settle(around, Request::Create, Err(error));
        }
        self.advance(around);
    }

    /// Time has passed, or the surroundings have changed.
    pub fn tick(&mut self, around: &mut Surroundings<'_>) {
        self.advance(around);
    }

    fn doubt(&mut self, around: &mut Surroundings<'_>, attempt: u32, accepted: bool) {
        let known = self.groups.iter().any(|group| group.attempt() == attempt);
        if known {
            // It was seen before the answer was lost.
            return self.settle(around, Request::Create, Ok(()));
        }
        self.creation = Creation::InDoubt(Doubt::new(attempt, around.now, accepted));
    }

    fn remove(&mut self, around: &mut Surroundings<'_>, at: usize) {
        let group = self.groups.remove(at);
        around.actions.push(Action::Gone(group.group().clone()));
    }

    fn settle(&mut self, around: &mut Surroundings<'_>, request: Request, result: CallResult<()>) {
        let waits = match request {
            Request::Create => &mut self.create_waits,
            Request::Delete => &mut self.delete_waits,
        };
        if std::mem::take(waits) {
            around.actions.push(Action::Settle(request, result));
        }
    }

    /// Compares what should be with what is.
    fn advance(&mut self, around: &mut Surroundings<'_>) {
        match &mut self.creation {
            Creation::InDoubt(doubt) => {
                if let Some(attempt) = doubt.next_lookup(around.now) {
                    let id = around.ids.issue();
                    doubt.begin(around.now, id);
                    around.actions.push(Action::LookUp { id, attempt });
                }
                return;
            }
            Creation::InFlight { .. } => return,
            Creation::Queued { .. } | Creation::Requested if self.goal != Goal::Run => {
                self.creation = Creation::None;
                let error = CallError::unavailable("the pod is no longer wanted");
                self.settle(around, Request::Create, Err(error));
            }
            _ => {}
        }
        match self.goal {
            Goal::Unspecified => self.remove_duplicates(around),
            Goal::Run => {
                self.ask_for_group(around);
                self.remove_duplicates(around);
            }
            Goal::Stop { grace } => self.stop(around, grace),
        }
    }

    fn ask_for_group(&mut self, around: &mut Surroundings<'_>) {
        if self.creation != Creation::Requested {
            return;
        }
        if self.groups.iter().any(Group::is_kept) {
            self.creation = Creation::None;
            return self.settle(around, Request::Create, Ok(()));
        }
        // What is being deleted has to go first, and what an earlier process has created must be known.
        let known = around.certain || !self.inherited || around.idempotency != Idempotency::None;
        if !self.groups.is_empty() || !around.synced || !known || !around.leading {
            return;
        }
        let id = around.ids.issue();
        self.creation = Creation::Queued { id, attempt: self.next_attempt };
        around.actions.push(Action::Create { id, attempt: self.next_attempt });
    }

    /// Deletes all but the oldest group, once all were seen by their ids.
    fn remove_duplicates(&mut self, around: &mut Surroundings<'_>) {
        for group in self.groups.iter_mut().filter(|group| group.has_failed_removal(around.now)) {
            group.repeat_removal();
            self.delete_failed = Some(around.now);
        }
        let kept = self.groups.iter().filter(|group| group.is_kept()).count();
        if kept < 2 || !around.leading {
            return;
        }
        let newest = self.groups.iter().filter(|group| group.is_kept()).map(Group::since).max();
        let newest = newest.max(self.delete_failed);
        let unchecked = self.groups.iter_mut().filter(|group| group.is_kept() && group.checked() < newest);
        // Lists may show groups that are gone, and not when they were created.
        if unchecked.map(Group::want_check).count() > 0 {
            return;
        }
        let Some(oldest) = self.main().map(|group| group.group().clone()) else { return };
        let is_oldest = |group: &Group| group.group().id == oldest.id;
        for group in self.groups.iter_mut().filter(|group| group.is_kept() && !is_oldest(group)) {
            let id = around.ids.issue();
            group.set_removal(Removal::Queued(id));
            let is_new = group.mark_duplicate();
            let group = group.group().clone();
            if is_new {
                around.actions.push(Action::Duplicate { kept: oldest.clone(), removed: group.clone() });
            }
            around.actions.push(Action::Delete { id, group, grace: DUPLICATE_GRACE });
        }
    }

    fn stop(&mut self, around: &mut Surroundings<'_>, grace: Duration) {
        if self.groups.is_empty() {
            if let Some(doubt) = self.repeated.take() {
                self.creation = Creation::InDoubt(doubt);
                return self.advance(around);
            }
            if self.is_absent(around.synced, around.certain) {
                let gone = CallError::new(Class::NotFound, "the cloud has no group of this pod");
                self.settle(around, Request::Delete, Err(gone));
            }
            return;
        }
        if around.leading {
            for group in &mut self.groups {
                if group.wants_removal(around.now) {
                    let id = around.ids.issue();
                    group.set_removal(Removal::Queued(id));
                    let group = group.group().clone();
                    around.actions.push(Action::Delete { id, group, grace });
                }
            }
        }
        if self.groups.iter().all(Group::is_removed) {
            self.settle(around, Request::Delete, Ok(()));
        }
    }
}

#[cfg(test)]
mod tests;
