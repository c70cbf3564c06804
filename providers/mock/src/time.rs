//! Arithmetic with timestamps, and the clock that pods live by unless a test gives another one.

use std::time::Duration;

use jiff::Timestamp;
use vk_supervisor::Clock;

/// A clock that starts at the system's time and moves with tokio's: timers and timestamps agree also under a paused clock.
pub(crate) fn default_clock() -> Clock {
    Clock::following_tokio(Clock::system().now())
}

/// `time` plus `delay`, capped at the largest timestamp.
pub(crate) fn after(time: Timestamp, delay: Duration) -> Timestamp {
    time.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// The time from `from` to `to`; zero if `to` is earlier.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
