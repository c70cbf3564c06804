//! The time, as the state machines are told it.

use std::time::Duration;

use jiff::Timestamp;

/// The time, twice: since the controller's start for waiting, and by the wall clock for what is written.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since the controller's start.
    pub elapsed: Duration,
    /// By the wall clock.
    pub wall: Timestamp,
}
