//! Times and policies of a node.

use std::time::Duration;

use super::lease::Terms;

/// Times and policies of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How often the provider is pinged.
    pub ping_interval: Duration,
    /// How long a ping may take.
    pub ping_timeout: Duration,
    /// How often the status is posted when nothing changes.
    pub status_interval: Duration,
    /// How long the lease lasts, and for how long a renewal lets us write; it is renewed four times as often.
    pub lease: Terms,
    /// What becomes of the Node when the process stops.
    pub on_stop: OnStop,
}

/// What becomes of the Node when the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// It stays, NotReady with a reason, and the next process adopts it.
    Leave,
    /// It is deleted. A node identity may not do that.
    Delete,
    /// It stays as it is: another replica goes on with it.
    HandOver,
}
