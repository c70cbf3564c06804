//! Time as a parameter.
//!
//! Durations are measured with [`tokio::time::Instant`], which tests can pause and advance. What is written into
//! Kubernetes objects is wall-clock time, and that comes from here.

use std::{fmt, sync::Arc};

use jiff::{Timestamp, ToSpan as _};
use tokio::time::Instant;

/// Tells the wall-clock time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock that tells what this tells.
    pub fn new(tell: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// The system's clock.
    #[expect(clippy::disallowed_methods, reason = "the one place where the system's clock is read")]
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// A clock that starts at `start` and moves with tokio's time: a test that pauses and advances tokio's clock moves
    /// this one too. Must be made inside a runtime.
    pub fn following_tokio(start: Timestamp) -> Self {
        let origin = Instant::now();
        Self(Arc::new(move || {
            let elapsed = i64::try_from(origin.elapsed().as_nanos()).unwrap_or(i64::MAX);
            start.checked_add(elapsed.nanoseconds()).unwrap_or(start)
        }))
    }

    /// The time now.
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
    async fn a_following_clock_moves_with_the_paused_time_of_a_test() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::following_tokio(start);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().to_string(), "2026-01-01T00:01:30Z");
    }
}
