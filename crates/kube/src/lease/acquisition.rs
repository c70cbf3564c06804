//! Evaluates a lease that was read: free to acquire, or held by another process.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use rand::rngs::StdRng;

use super::{Instance, LeaseConflict, Renewer, State};

/// How often a lease that another process may hold is read when only one process may run.
pub(super) const POLL_PERIOD: Duration = Duration::from_secs(1);

/// The relevant content of a lease that is not ours.
struct ForeignLease {
    holder: String,
    version: Option<String>,
    renewed: Option<Timestamp>,
    duration: Duration,
}

impl Renewer {
    pub(super) fn on_read(
        &mut self,
        now: Duration,
        wall: Timestamp,
        lease: Lease,
    ) -> Result<(), LeaseConflict> {
        let spec = lease.spec.clone().unwrap_or_default();
        let was_ours = self.holds(self.lease.as_ref());
        let holder = spec.holder_identity.unwrap_or_default();
        let instance = self.lock.holder(&lease);
        let free = holder.is_empty()
            || instance.as_ref() == Some(&self.instance)
            || instance.as_ref().is_some_and(|other| self.instance.is_known_dead(other));
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let foreign = ForeignLease {
            holder: instance.as_ref().map_or_else(|| format!("holder {holder:?}"), Instance::describe),
            version: lease.metadata.resource_version.clone(),
            renewed: spec.renew_time.map(|time| time.0),
            duration: seconds.map_or(self.times.duration, Duration::from_secs),
        };
        match self.times.standby {
            _ if free => self.acquire(now),
            _ if was_ours => {
                self.write_deadline = None;
                return Err(LeaseConflict::Lost { lock: self.lock.clone(), holder: foreign.holder });
            }
            Some(period) => self.stand_by(now, period, foreign),
            None => self.check_holder(now, wall, foreign)?,
        }
        self.lease = Some(lease);
        Ok(())
    }

    /// Waits to see whether the holder renews the lease, and fails if it does.
    fn check_holder(
        &mut self,
        now: Duration,
        wall: Timestamp,
        foreign: ForeignLease,
    ) -> Result<(), LeaseConflict> {
        let ForeignLease { holder, renewed, duration, .. } = foreign;
        let age = renewed
            .map_or(duration, |at| Duration::try_from(wall.duration_since(at)).unwrap_or(Duration::ZERO));
        match self.state {
            State::CheckingHolder { renewed: before, .. } if before != renewed => {
                return Err(LeaseConflict::InUse { lock: self.lock.clone(), holder });
            }
            State::CheckingHolder { until, .. } if now >= until => self.acquire(now),
            State::CheckingHolder { .. } => self.due = now + POLL_PERIOD,
            // Expired, unless the holder's clock is far off.
            _ if age > duration => self.acquire(now),
            _ => {
                self.lock.log_other_holder(&holder);
                self.state = State::CheckingHolder { renewed, until: now + duration.saturating_sub(age) };
                self.due = now + POLL_PERIOD;
            }
        }
        Ok(())
    }

    /// Waits for the lease to expire. The holder's wall clock is ignored because it may be wrong: the lease has expired when
    /// it did not change for its whole duration by our own clock, counted from our read. The holder counts from before its
    /// write, so it stops earlier.
    fn stand_by(&mut self, now: Duration, period: Duration, foreign: ForeignLease) {
        let ForeignLease { holder, version, duration, .. } = foreign;
        match &self.state {
            State::Standby { version: before, until, .. } if *before == version => {
                if now >= *until {
                    self.lock.log_takeover(&holder);
                    return self.acquire(now);
                }
            }
            state => {
                if !matches!(state, State::Standby { .. }) {
                    self.lock.log_standby(&holder);
                }
                self.state = State::Standby { version, until: now + duration, duration };
            }
        }
        self.due = now + period;
    }

    /// Handles a lease that does not exist.
    pub(super) fn on_missing(&mut self, now: Duration, rng: &mut StdRng) {
        let until = match self.state {
            // It may have been renewed just before its deletion, so the holder may write for a whole duration.
            State::Standby { duration, .. } => now + duration,
            State::Vanished { until } => until,
            _ => now,
        };
        if let Some(period) = self.times.standby.filter(|_| now < until) {
            self.state = State::Vanished { until };
            self.due = now + period;
        } else {
            self.state = State::Absent;
            self.due = now + self.conflict_backoff(rng);
        }
    }

    fn acquire(&mut self, now: Duration) {
        self.state = State::Ours;
        self.due = now;
    }
}
