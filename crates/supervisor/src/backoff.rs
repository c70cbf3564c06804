//! Exponential back-off. It never gives up: when to stop retrying is the caller's decision.

use std::time::Duration;

use rand::{Rng, RngExt as _};

/// Delays that double from `first` to `largest`, with jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    largest: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a back-off whose first delay is about `first` and whose delays never exceed `largest`.
    pub const fn new(first: Duration, largest: Duration) -> Self {
        Self { first, largest, failures: 0 }
    }

    /// The delay after one more failure: between half of the current step and the whole step, so that many waiters
    /// spread out. A delay that the server asked for is honoured even if it exceeds `largest`.
    pub fn next(&mut self, retry_after: Option<Duration>, rng: &mut impl Rng) -> Duration {
        let step = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.largest);
        self.failures = self.failures.saturating_add(1);
        let wait = step.mul_f64(rng.random_range(0.5..=1.0));
        retry_after.map_or(wait, |retry_after| retry_after + wait.min(Duration::from_secs(1)))
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LARGEST: Duration = Duration::from_secs(7);

    #[test]
    fn delays_double_up_to_the_largest_and_never_end() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut backoff = Backoff::new(FIRST, LARGEST);
        for failures in 0..10_000_u32 {
            let step = FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(LARGEST);
            let wait = backoff.next(None, &mut rng);
            assert!(wait >= step / 2 && wait <= step, "{wait:?} after {failures} failures");
        }
        backoff.reset();
        assert!(backoff.next(None, &mut rng) <= FIRST);
    }

    #[test]
    fn a_delay_that_the_server_asked_for_is_honoured() {
        let mut rng = StdRng::seed_from_u64(2);
        let asked = Duration::from_mins(1);
        for _ in 0..100 {
            let wait = Backoff::new(FIRST, LARGEST).next(Some(asked), &mut rng);
            assert!(wait > asked && wait <= asked + FIRST, "{wait:?}");
        }
    }
}
