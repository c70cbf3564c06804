//! An injectable wall clock, and the current time as state machines get it.
//!
//! Durations are measured with [`tokio::time::Instant`], which tests can pause and advance. Wall-clock times, as in
//! Kubernetes objects, come from [`Clock`].

use std::{fmt, sync::Arc, time::Duration};

use jiff::{Timestamp, ToSpan as _};
use tokio::time::Instant;

/// A wall clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

/// The current time on two clocks: monotonic for waiting, and the wall clock for timestamps that are written.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time since the controller started (monotonic).
    pub elapsed: Duration,
    /// Wall-clock time.
    pub wall: Timestamp,
}

impl Clock {
    /// A clock that returns what `now` returns.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The system clock.
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the system clock")]
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// A clock for tests that starts at `start` and moves with tokio's time, which tests can pause and advance. Must be
    /// created inside a runtime.
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_following_clock_moves_with_paused_time() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::following_tokio(start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
    }
}
