//! When the cloud has to be asked for a group by its id.

use std::time::Duration;

use super::{ABSENCES, Detail, Group, Removal};
use crate::backend::{ContainerState, GroupState, ObservedContainer};

/// When the details are read of a group that starts, if the lists do not show them: later than most groups have started.
const START_PATIENCE: Duration = Duration::from_secs(25);
/// The same while init containers run, which lists may not show: the shortest time between two questions.
const INIT_PATIENCE: Duration = Duration::from_millis(1500);
/// Init containers that take long are asked for more rarely: after this part of the time for which nothing has changed.
const INIT_PART: u32 = 60;
/// When a group is asked for whose delete was accepted: few are gone before.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// When a group on its way out is asked for again that was still there.
const CHECK_AGAIN: Duration = Duration::from_secs(2);

/// A reason to ask for a group by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Since when it is due.
    pub since: Duration,
    /// Whether it waits for no others to fill the call.
    pub urgent: bool,
}

/// What the lists of a run have shown, and what else matters for questions.
#[derive(Clone, Copy, Debug)]
pub struct PollRun {
    /// When the run began.
    pub begun: Duration,
    /// Whether it has read a complete list.
    pub listed: bool,
    /// How often details are read of groups that do not seem to change.
    pub sweep: Duration,
}

// === impl Group ===

impl Group {
    /// Why the cloud has to be asked for it by its id now, if it has to.
    pub fn inquiry(&self, now: Duration, run: &PollRun) -> Option<Inquiry> {
        if self.check_wanted {
            return Some(Inquiry { since: self.checked.unwrap_or(self.since), urgent: true });
        }
        if self.absences >= self.needed_absences() {
            return Some(Inquiry { since: self.missed, urgent: !self.is_leaving() });
        }
        let due = [self.details_due(now, run.sweep), self.check_due(run)];
        due.into_iter().flatten().find(|inquiry| inquiry.since <= now)
    }

    /// How often it has to be missing, before an answer that asked for it by its id is believed. Where a delete was accepted, it is expected
    /// to be missing.
    pub(super) fn needed_absences(&self) -> u32 {
        if self.is_accepted() { 1 } else { ABSENCES }
    }

    /// Whether a feed that does not list it, and lists all changes since then, means something: it was being deleted, which is a change.
    pub fn is_missed_in_feed(&self, since: Duration) -> bool {
        let covered = matches!(self.removal, Removal::Accepted { at, .. } if at >= since);
        covered && self.observed.state == Some(GroupState::Deleting) && self.absences == 0
    }

    /// When more than the lists show is to be read.
    fn details_due(&self, now: Duration, sweep: Duration) -> Option<Inquiry> {
        // How a group comes to its end that we have deleted interests nobody.
        if self.is_accepted() {
            return None;
        }
        let initializes = self.is_starting() && self.has_init_containers();
        // What starts is shown by the feed. Details of it say why it does not start, and how its init containers fare.
        let patience = if initializes {
            (now.saturating_sub(self.changed) / INIT_PART).clamp(INIT_PATIENCE, START_PATIENCE)
        } else {
            START_PATIENCE
        };
        let since = match self.detail {
            Detail::Complete => return None,
            Detail::Due(_) if self.is_starting() => self.checked.unwrap_or(self.since) + patience,
            // How it has ended is not all in the lists.
            Detail::Due(at) => return Some(Inquiry { since: at, urgent: self.has_ended() }),
            Detail::Read(at) if self.is_starting() => at + patience,
            Detail::Read(at) => at + sweep,
        };
        Some(Inquiry { since, urgent: initializes })
    }

    /// When it may be gone. What a list of this run has shown is still there, and a complete list has said it already.
    fn check_due(&self, run: &PollRun) -> Option<Inquiry> {
        if run.listed || !self.may_be_gone() || self.seen >= run.begun {
            return None;
        }
        // Right after its delete it is certainly still there.
        let stopped = match self.removal {
            Removal::Accepted { at, .. } => at + STOP_PATIENCE,
            _ => self.seen,
        };
        let again = self.checked.map_or(Duration::ZERO, |checked| checked + CHECK_AGAIN);
        Some(Inquiry { since: stopped.max(self.seen).max(again), urgent: !self.is_leaving() })
    }

    /// Whether it has init containers that have not all done their work.
    fn has_init_containers(&self) -> bool {
        let is_done = |one: &ObservedContainer| match &one.state {
            Some(ContainerState::Terminated(ended)) => ended.exit_code == Some(0),
            _ => false,
        };
        match &self.observed.init_containers {
            Some(all) if !all.is_empty() => !all.iter().all(is_done),
            _ => self.expects_init,
        }
    }
}
