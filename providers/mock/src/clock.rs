//! Wall time that is a parameter and goes with tokio's clock, so that tests under a paused clock see it move.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

/// Tells the time. Cheap to clone; clones tell the same time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

// === impl Clock ===

impl Clock {
    /// A clock of the caller's. It must go on with tokio's time: the mock sleeps on the one until the other says that
    /// something is due.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// A clock that shows this time now and goes on with tokio's.
    pub fn starting_at(time: Timestamp) -> Self {
        let since = Instant::now();
        Self::new(move || after(time, since.elapsed()))
    }

    /// The system's time at this moment, going on with tokio's clock.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place where the default clock is made")]
        Self::starting_at(Timestamp::now())
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

/// So much later, or the end of time.
pub(crate) fn after(time: Timestamp, delay: Duration) -> Timestamp {
    time.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// How long `to` is after `from`; nothing when it is before.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
