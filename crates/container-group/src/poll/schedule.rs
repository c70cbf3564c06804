//! When the next poll begins.

use std::time::Duration;

use rand::{RngExt as _, rngs::StdRng};

/// The interval while something starts or stops.
const BUSY: Duration = Duration::from_secs(1);
/// The same while many calls wait for the budget, which polls would take from them.
const CROWDED: Duration = Duration::from_millis(2200);
/// The interval while something should start or stop, but nothing has changed for [`PATIENCE`].
const STUCK: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_mins(2);
/// The longest interval, before jitter.
const IDLE: Duration = Duration::from_secs(28);
/// The largest factor by which an interval is longer, so that nodes do not poll in step.
const JITTER: f64 = 1.15;
/// What each further call of a poll adds to the time after it: a poll that is expensive must be rarer.
const PER_CALL: Duration = Duration::from_millis(1200);
/// The waits after failed polls.
const AFTER_FAILURES: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10), IDLE];
/// The wait after the cloud has refused our credentials.
const AFTER_REFUSAL: Duration = Duration::from_mins(1);

/// The schedule of polls.
#[derive(Debug)]
pub struct Schedule {
    next_at: Duration,
    /// No poll before this time.
    not_before: Duration,
    idle: Duration,
    last_change: Duration,
    failures: usize,
    crowded: bool,
}

// === impl Schedule ===

impl Default for Schedule {
    fn default() -> Self {
        Self {
            next_at: Duration::ZERO,
            not_before: Duration::ZERO,
            idle: BUSY,
            last_change: Duration::ZERO,
            failures: 0,
            crowded: false,
        }
    }
}

impl Schedule {
    /// When the next poll begins.
    pub fn next_at(&self) -> Duration {
        self.next_at
    }

    /// The groups have to be listed now.
    pub fn begin(&mut self, now: Duration) {
        self.next_at = now;
        self.not_before = now;
    }

    /// Consecutive polls that have failed.
    pub fn failures(&self) -> usize {
        self.failures
    }

    /// Something has changed: it may go on to change.
    pub fn changed(&mut self, now: Duration) {
        self.last_change = now;
        self.idle = BUSY;
    }

    /// Says whether many calls wait for the budget.
    pub fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// Whether [`hurry`](Self::hurry) would change anything.
    pub fn can_hurry(&self, now: Duration) -> bool {
        self.failures == 0 && self.next_at > (now + self.busy(now)).max(self.not_before)
    }

    /// Something starts or stops: polls soon, if the last one was long enough ago.
    pub fn hurry(&mut self, now: Duration) {
        if self.can_hurry(now) {
            self.next_at = (now + self.busy(now)).max(self.not_before);
        }
    }

    /// A poll of this many calls has ended.
    pub fn succeeded(&mut self, now: Duration, calls: u32, busy: bool, rng: &mut StdRng) {
        self.failures = 0;
        let interval = if busy {
            self.idle = BUSY;
            self.busy(now)
        } else {
            self.idle = self.idle.mul_f64(1.5).min(IDLE);
            self.idle
        };
        self.not_before = now + PER_CALL * calls.saturating_sub(1);
        let jittered = interval.mul_f64(rng.random_range(1.0..=JITTER));
        self.next_at = (now + jittered).max(self.not_before);
    }

    /// A poll has failed; `refused` because of our credentials.
    pub fn failed(&mut self, now: Duration, refused: bool, rng: &mut StdRng) {
        let wait = AFTER_FAILURES[self.failures.min(AFTER_FAILURES.len() - 1)];
        self.failures += 1;
        let wait = if refused { AFTER_REFUSAL } else { wait };
        self.next_at = now + wait.mul_f64(rng.random_range(0.5..=1.0));
    }

    fn busy(&self, now: Duration) -> Duration {
        match now.saturating_sub(self.last_change) < PATIENCE {
            true if self.crowded => CROWDED,
            true => BUSY,
            false => STUCK,
        }
    }
}
