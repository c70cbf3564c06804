//! The current time, as passed to the state machines.

use std::time::Duration;

use jiff::Timestamp;

/// The current time on two clocks: monotonic for waiting, and the wall clock for timestamps that are written.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time since the controller started (monotonic).
    pub elapsed: Duration,
    /// Wall-clock time.
    pub wall: Timestamp,
}
