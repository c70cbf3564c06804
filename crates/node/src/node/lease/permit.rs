//! For how long a lease that was taken lets us write.

use std::time::Duration;

use jiff::Timestamp;

use crate::now::Now;

/// The times of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long it holds: nobody takes it from its holder before.
    pub duration: Duration,
    /// How long after a renewal writes may begin. What is left of the duration is for requests that are under way and for
    /// clocks that run at different speeds.
    pub renew_deadline: Duration,
    /// Where there are several replicas: how often one that stands by looks at the lease. `None`: there is to be one
    /// process, and a second one ends.
    pub standby: Option<Duration>,
}

/// The first moment at which no write may begin, by two clocks; whichever is there first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Since the controller's start.
    pub elapsed: Duration,
    /// By the wall clock, which goes on while the machine is suspended.
    pub wall: Timestamp,
}

// === impl Permit ===

impl Permit {
    pub(super) fn after(sent: Now, time: Duration) -> Self {
        // A wall clock at the end of time is no reason to go on for ever.
        let wall = sent.wall.checked_add(time).unwrap_or(sent.wall);
        Self { elapsed: sent.elapsed + time, wall }
    }

    /// Whether a write may begin now.
    pub fn holds(&self, now: Now) -> bool {
        now.elapsed < self.elapsed && now.wall < self.wall
    }
}
