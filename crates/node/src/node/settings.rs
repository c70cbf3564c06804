//! Intervals and policies of a node.

use std::time::Duration;

use vk_kube::lease::LeaseTimes;

/// Intervals and policies of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Interval between pings of the provider.
    pub ping_interval: Duration,
    /// Timeout of a ping.
    pub ping_timeout: Duration,
    /// Interval between status updates when nothing changes.
    pub status_interval: Duration,
    /// Duration and renewal deadline of the lease. It is renewed four times per duration.
    pub lease: LeaseTimes,
    /// What happens to the Node when the process stops.
    pub on_stop: OnStop,
}

/// What happens to the Node when the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Keep it, NotReady with a reason. The next process takes it over.
    Leave,
    /// Delete it. A node identity is not allowed to do that.
    Delete,
    /// Leave it unchanged for another replica.
    HandOver,
}
