//! The back-off of one operation that is repeated until it succeeds.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_supervisor::Backoff;

/// When an operation may be tried again.
#[derive(Debug)]
pub(super) struct Retry {
    not_before: Duration,
    backoff: Backoff,
}

// === impl Retry ===

impl Retry {
    /// Delays grow from 100 ms to `largest`.
    pub(super) fn new(largest: Duration) -> Self {
        Self { not_before: Duration::ZERO, backoff: Backoff::new(Duration::from_millis(100), largest) }
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.not_before
    }

    /// Whether the last attempt succeeded, or there was none.
    pub(super) fn is_first_attempt(&self) -> bool {
        self.backoff.failures() == 0
    }

    /// The next attempt need not wait. Later delays continue from where they are.
    pub(super) fn skip_delay(&mut self) {
        self.not_before = Duration::ZERO;
    }

    /// The next attempt waits until this time.
    pub(super) fn delay_until(&mut self, at: Duration) {
        self.not_before = at;
    }

    /// The next attempt waits until this time at the latest.
    pub(super) fn advance_to(&mut self, at: Duration) {
        self.not_before = self.not_before.min(at);
    }

    pub(super) fn succeeded(&mut self) {
        self.not_before = Duration::ZERO;
        self.backoff.reset();
    }

    /// The attempt failed. `requested` is the delay that the other side asked for.
    pub(super) fn failed(&mut self, now: Duration, requested: Option<Duration>, rng: &mut StdRng) {
        self.not_before = now + self.backoff.next(requested, rng);
    }

    /// The time of the next attempt, if that is in the future.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        (self.not_before > now).then_some(self.not_before)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn failures_delay_the_next_attempt_and_a_success_ends_the_delay() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut retry = Retry::new(Duration::from_secs(10));
        let now = Duration::from_mins(1);
        assert!(retry.is_due(now) && retry.is_first_attempt());
        retry.failed(now, None, &mut rng);
        assert!(!retry.is_due(now) && !retry.is_first_attempt());
        let deadline = retry.deadline(now).expect("another attempt");
        assert!(retry.is_due(deadline));
        retry.advance_to(now);
        assert!(retry.is_due(now) && retry.deadline(now).is_none());
        retry.failed(now, Some(Duration::from_secs(77)), &mut rng);
        assert!(retry.deadline(now) >= Some(now + Duration::from_secs(77)));
        retry.succeeded();
        assert!(retry.is_due(now) && retry.is_first_attempt());
    }
}
