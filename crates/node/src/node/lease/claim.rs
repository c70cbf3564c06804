//! What a lease that was read means: free to take, or somebody else's.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rand::rngs::StdRng;
use tracing::{info, warn};

use super::{Instance, Renewer, State, Taken, instance_of};

/// How often a lease that another process may hold is looked at, where there is to be one process.
pub(super) const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What a lease says that is not ours.
struct Claim {
    holder: String,
    version: Option<String>,
    renewed: Option<Timestamp>,
    duration: Duration,
}

impl Renewer {
    pub(super) fn read(&mut self, now: Duration, wall: Timestamp, lease: Lease) -> Result<(), Taken> {
        let spec = lease.spec.clone().unwrap_or_default();
        let was_ours = self.holds(self.seen.as_ref());
        let holder = spec.holder_identity.unwrap_or_default();
        let instance = instance_of(&lease);
        let free = holder.is_empty()
            || instance.as_ref() == Some(&self.instance)
            || instance.as_ref().is_some_and(|other| self.instance.sees_dead(other));
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let claim = Claim {
            holder: instance.as_ref().map_or_else(|| format!("holder {holder:?}"), Instance::describe),
            version: lease.metadata.resource_version.clone(),
            renewed: spec.renew_time.map(|time| time.0),
            duration: seconds.map_or(self.terms.duration, Duration::from_secs),
        };
        match self.terms.standby {
            _ if free => self.take(now),
            _ if was_ours => {
                self.permit = None;
                return Err(Taken::Lost { node: self.node.clone(), holder: claim.holder });
            }
            Some(period) => self.stand_by(now, period, claim),
            None => self.look(now, wall, claim)?,
        }
        self.seen = Some(lease);
        Ok(())
    }

    /// Waits for a sign of life of the holder, and ends at one.
    fn look(&mut self, now: Duration, wall: Timestamp, claim: Claim) -> Result<(), Taken> {
        let Claim { holder, renewed, duration, .. } = claim;
        let age = renewed
            .map_or(duration, |at| Duration::try_from(wall.duration_since(at)).unwrap_or(Duration::ZERO));
        match self.state {
            State::Watching { renewed: before, .. } if before != renewed => {
                return Err(Taken::InUse { node: self.node.clone(), holder });
            }
            State::Watching { until, .. } if now >= until => self.take(now),
            State::Watching { .. } => self.due = now + LOOK_PERIOD,
            // Not renewed for so long that only a clock far off could mean a living holder.
            _ if age > duration => self.take(now),
            _ => {
                warn!(
                    node = %self.node, %holder,
                    "the node's lease is held by another process: waiting to see whether it is alive"
                );
                self.state = State::Watching { renewed, until: now + duration.saturating_sub(age) };
                self.due = now + LOOK_PERIOD;
            }
        }
        Ok(())
    }

    /// Waits for the holder to give up. Its wall clock is not asked: it may be any time off. The lease is ours when it has
    /// not changed for its whole duration by our own clock, counted from when we saw it: the holder counts from before it
    /// was written.
    fn stand_by(&mut self, now: Duration, period: Duration, claim: Claim) {
        let Claim { holder, version, duration, .. } = claim;
        match &self.state {
            State::StandingBy { version: before, until, .. } if *before == version => {
                if now >= *until {
                    info!(node = %self.node, %holder, "the leader has not renewed the node's lease: taking over");
                    return self.take(now);
                }
            }
            state => {
                if !matches!(state, State::StandingBy { .. }) {
                    info!(node = %self.node, leader = %holder, "another replica leads: standing by");
                }
                self.state = State::StandingBy { version, until: now + duration, theirs: duration };
            }
        }
        self.due = now + period;
    }

    /// There is no lease.
    pub(super) fn missing(&mut self, now: Duration, rng: &mut StdRng) {
        let until = match self.state {
            // It may have been renewed just before it was deleted, so its holder may write for all of its duration.
            State::StandingBy { theirs, .. } => now + theirs,
            State::Vanished { until } => until,
            _ => now,
        };
        if let Some(period) = self.terms.standby.filter(|_| now < until) {
            self.state = State::Vanished { until };
            self.due = now + period;
        } else {
            self.state = State::Absent;
            self.due = now + self.backoff_after_second_try(rng);
        }
    }

    fn take(&mut self, now: Duration) {
        self.state = State::Ours;
        self.due = now;
    }
}
