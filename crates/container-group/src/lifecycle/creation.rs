//! A create: asked for, waiting for the budget, under way, or in doubt.

use std::time::Duration;

use super::CallId;

/// How long after a lookup the next one follows.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(2);
/// How often a complete lookup has to miss the group of a create that cannot be repeated.
const MISSES: u32 = 2;

/// The state of a create.
#[derive(Clone, Debug, PartialEq)]
pub enum Creation {
    /// No create is under way.
    None,
    /// The core asked for the pod; the cloud's groups are not known yet, or something has to go first.
    Requested,
    /// Waits for the budget.
    Queued {
        /// The call.
        id: CallId,
        /// The attempt.
        attempt: u32,
    },
    /// The cloud was asked.
    InFlight {
        /// The call.
        id: CallId,
        /// The attempt.
        attempt: u32,
    },
    /// It is not known whether there is a group, or not known which.
    InDoubt(Doubt),
}

/// A create whose outcome is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct Doubt {
    pub(super) attempt: u32,
    /// When the call ended.
    since: Duration,
    /// Whether the cloud accepted it, and has only not said its id.
    accepted: bool,
    misses: u32,
    /// Whether it is certain that there is no group.
    settled: bool,
    lookup: Lookup,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lookup {
    Due(Duration),
    InFlight { id: CallId, begun: Duration },
}

// === impl Doubt ===

impl Doubt {
    pub(super) fn new(attempt: u32, now: Duration, accepted: bool) -> Self {
        Self { attempt, since: now, accepted, misses: 0, settled: false, lookup: Lookup::Due(now) }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.lookup {
            Lookup::Due(at) => Some(at),
            Lookup::InFlight { .. } => None,
        }
    }

    /// The attempt to look up, if it is time.
    pub(super) fn next_lookup(&self, now: Duration) -> Option<u32> {
        self.deadline().filter(|due| *due <= now).map(|_| self.attempt)
    }

    pub(super) fn begin(&mut self, now: Duration, id: CallId) {
        self.lookup = Lookup::InFlight { id, begun: now };
    }

    /// A lookup has not found the group. Returns whether that settles it: there is none. `repeatable`: a repeated create cannot make a
    /// second group, so that the lists need not be up to date.
    pub(super) fn looked_up(
        &mut self,
        now: Duration,
        id: CallId,
        complete: bool,
        consistency: Duration,
        repeatable: bool,
    ) -> bool {
        let Lookup::InFlight { id: called, begun } = self.lookup else { return false };
        if called != id {
            return false;
        }
        self.lookup = Lookup::Due(now + LOOKUP_INTERVAL);
        if !complete {
            return false;
        }
        self.misses += 1;
        self.settled |= self.misses >= MISSES && begun >= self.since + consistency;
        self.settled || (repeatable && !self.accepted)
    }

    /// Whether it is certain that there is no group.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }
}
