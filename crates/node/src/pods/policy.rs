//! Policies about pods.

use std::time::Duration;

use super::admission::{Checks, RejectionPolicy};

/// Policies about pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How often a provider that does not push is asked.
    pub poll: Option<Duration>,
    /// How long after the end of its grace period a pod that does not stop is removed from the API server all the same.
    /// `None`: never; an event reports it instead.
    pub force_after: Option<Duration>,
    /// Addresses of the node.
    pub host_ips: Vec<String>,
    /// How often the provider's pods are compared with the API server's.
    pub compare: Duration,
    /// What is checked before a pod is handed to the provider.
    pub checks: Checks,
    /// What becomes of pods of DaemonSets, where the node does not run them.
    pub daemon_sets: Option<RejectionPolicy>,
    /// What becomes of pods that the provider refuses.
    pub refused: RejectionPolicy,
    /// Whether our identity may set labels of pods: a node's may not.
    pub may_label: bool,
    /// How many events a second are written at most, and twice as many in a burst.
    pub events_per_second: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            poll: None,
            force_after: None,
            host_ips: Vec::new(),
            compare: Duration::from_mins(1),
            checks: Checks::Off,
            daemon_sets: None,
            refused: RejectionPolicy::Fail,
            may_label: true,
            events_per_second: 50,
        }
    }
}
