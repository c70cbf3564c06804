//! Wall-clock time as a parameter.
//!
//! Durations are measured with [`tokio::time::Instant`], which tests can pause and advance. Timestamps in Kubernetes
//! objects are wall-clock time; they come from a [`Clock`].

use std::{fmt, sync::Arc};

use jiff::{Timestamp, ToSpan as _};
use tokio::time::Instant;

/// A source of wall-clock time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Creates a clock that calls `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The system clock.
    #[expect(clippy::disallowed_methods, reason = "the one place where the system clock is read")]
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// Creates a clock that starts at `start` and moves with tokio's time, which tests can pause and advance. Call it
    /// inside a tokio runtime.
    pub fn following_tokio(start: Timestamp) -> Self {
        let origin = Instant::now();
        Self(Arc::new(move || {
            let elapsed = i64::try_from(origin.elapsed().as_nanos()).unwrap_or(i64::MAX);
            start.checked_add(elapsed.nanoseconds()).unwrap_or(start)
        }))
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_follows_tokio_moves_with_its_paused_time() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::following_tokio(start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
    }
}
