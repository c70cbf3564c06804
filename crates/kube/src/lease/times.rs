//! Lease times, and the deadline for writes that follows from a renewal.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use vk_supervisor::Now;

use crate::fence;

/// Duration and deadlines of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Lease duration. No other process takes the lease before it is over.
    pub duration: Duration,
    /// How long after a renewal writes may be started. The rest of the duration covers requests in flight and clock drift.
    pub renew_deadline: Duration,
    /// With several replicas: how often a standby reads the lease. `None`: only one process may run, and a second one exits.
    pub standby: Option<Duration>,
}

/// When writes must stop, on two clocks. The earlier one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteDeadline {
    /// Time since the controller started.
    pub elapsed: Duration,
    /// Wall-clock time, which advances while the machine is suspended.
    pub wall: Timestamp,
}

// === impl LeaseTimes ===

impl LeaseTimes {
    /// The times of kube-controller-manager and other components with leader election: 15 s, 10 s and 2 s.
    pub const LEADER_ELECTION: Self = Self {
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        standby: Some(Duration::from_secs(2)),
    };

    /// How often the lease is renewed: four times per duration, like the kubelet's.
    pub(super) fn renew_interval(&self) -> Duration {
        self.duration / 4
    }
}

// === impl WriteDeadline ===

impl WriteDeadline {
    pub(super) fn after(sent: Now, renew_deadline: Duration) -> Self {
        // On overflow of the wall clock the deadline is now, not never.
        let wall = sent.wall.checked_add(renew_deadline).unwrap_or(sent.wall);
        Self { elapsed: sent.elapsed + renew_deadline, wall }
    }

    /// The deadline for a [`Fence`](crate::Fence), of a controller that started at `start`.
    pub fn for_fence(&self, start: Instant) -> fence::Deadline {
        fence::Deadline { steady: start + self.elapsed, wall: self.wall }
    }

    /// Whether a write may be started now.
    pub fn allows(&self, now: Now) -> bool {
        now.elapsed < self.elapsed && now.wall < self.wall
    }
}
