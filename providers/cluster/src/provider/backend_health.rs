//! Health of the backend: whether the lower API server answers.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;
use vk_provider::{Error, Result};
use vk_supervisor::task;

use super::VirtualNode;
use crate::{lower_cluster::ProbeCursor, names::ABANDON};

/// Number of consecutive failed probes after which the node is unhealthy.
const FAILURE_THRESHOLD: u32 = 3;
/// How long a ping waits for a probe before it answers with what is known.
const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// The failure message while a probe is pending.
const NO_ANSWER: &str = "it has not answered the pending request yet";

/// The health of the lower API server and the probe in flight.
#[derive(Debug)]
pub(super) struct BackendHealth {
    probe: Mutex<ProbeState>,
    /// The probes of the lower cluster that this node has used.
    cursor: ProbeCursor,
    /// Incremented when a probe finishes.
    finished: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct ProbeState {
    failures: u32,
    in_flight: bool,
    /// Why the cluster is unhealthy; `None` while it is healthy.
    error: Option<String>,
    /// Whether a probe has ever succeeded.
    has_succeeded: bool,
    /// Whether the resources were computed after the first successful ping.
    resources_computed: bool,
}

// === impl BackendHealth ===

impl Default for BackendHealth {
    fn default() -> Self {
        Self { probe: Mutex::default(), cursor: ProbeCursor::default(), finished: watch::Sender::new(0) }
    }
}

impl BackendHealth {
    /// Why the lower cluster is unhealthy; `None` while it is healthy.
    pub(super) fn error(&self) -> Option<String> {
        self.probe.lock().error.clone()
    }
}

// === impl ProbeState ===

impl ProbeState {
    /// Starts a probe, unless one is in flight already.
    fn try_begin(&mut self) -> bool {
        !std::mem::replace(&mut self.in_flight, true)
    }

    /// Records the result of a probe. Returns whether the health changed.
    fn finish(&mut self, answer: Result<(), String>) -> bool {
        let before = self.error.is_some();
        self.in_flight = false;
        match answer {
            Ok(()) => (self.failures, self.error, self.has_succeeded) = (0, None, true),
            Err(why) => self.fail(why),
        }
        before != self.error.is_some()
    }

    /// Counts a failure if a probe is still in flight when a ping stops waiting. Returns whether the health changed.
    fn time_out(&mut self) -> bool {
        let before = self.error.is_some();
        if self.in_flight {
            self.fail(NO_ANSWER.to_owned());
        }
        before != self.error.is_some()
    }

    fn fail(&mut self, why: String) {
        self.failures = self.failures.saturating_add(1);
        // A cluster that never answered gets no credit.
        if self.failures >= FAILURE_THRESHOLD || !self.has_succeeded {
            self.error = Some(why);
        }
    }
}

// === impl VirtualNode ===

impl VirtualNode {
    /// Answers quickly whatever the lower cluster does. If a ping hung with it, the core would blame the provider.
    pub(super) async fn ping(self: &Arc<Self>) -> Result<()> {
        if self.is_abandoned() {
            return Err(Error::unavailable(format!(
                "the lower cluster was abandoned ({ABANDON}): delete this Node when it is no longer needed"
            )));
        }
        let mut finished = self.health.finished.subscribe();
        if self.health.probe.lock().try_begin() {
            self.spawn_probe();
        }
        // Most probes answer at once. Success and timeout are both visible in the probe state.
        drop(tokio::time::timeout(PING_TIMEOUT, finished.changed()).await);
        let server = self.lower.client().server();
        let error = {
            let mut probe = self.health.probe.lock();
            if probe.time_out() {
                self.node_status.mark_changed();
            }
            probe.error.clone()
        };
        if let Some(why) = error {
            return Err(Error::unavailable(format!("the lower cluster {server} does not answer: {why}")));
        }
        self.check_not_upper()?;
        self.lower.check_synced()?;
        // A node that becomes Ready must offer its resources at once: the scheduler would not come back soon for a node without any.
        if !std::mem::replace(&mut self.health.probe.lock().resources_computed, true) {
            self.update_resources();
        }
        Ok(())
    }

    /// Probes the lower cluster in a task of its own, however long that takes.
    fn spawn_probe(self: &Arc<Self>) {
        let (node, supervisor) = (Arc::clone(self), self.supervisor.clone());
        let guard = supervisor.clone();
        supervisor.spawn("lower cluster probe", task::Kind::Work, async move {
            let answer = tokio::select! {
                answer = node.lower.probe(&node.health.cursor) => answer,
                () = guard.stopping() => return,
            };
            let answer = answer.map_err(|error| error.to_string());
            if node.health.probe.lock().finish(answer) {
                node.node_status.mark_changed();
            }
            node.health.finished.send_modify(|count| *count = count.wrapping_add(1));
        });
    }

    /// A cluster cannot be a node of itself: its pods would conflict with their own copies.
    fn check_not_upper(&self) -> Result<()> {
        if self.lower.identity().info().id.as_deref() == Some(&self.owner.origin) {
            return Err(Error::unavailable(
                "the lower cluster is the upper cluster: configure the kubeconfig of another cluster",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_unready_after_three_failures_and_at_once_if_the_cluster_never_answered() {
        let no_route = || Err("no route".to_owned());
        let mut probe = ProbeState::default();
        assert!(probe.finish(no_route()), "it never answered");
        assert!(probe.finish(Ok(())) && probe.error.is_none());
        assert!(!probe.finish(no_route()) && !probe.finish(no_route()) && probe.error.is_none());
        assert!(probe.finish(no_route()));
        assert_eq!(probe.error.as_deref(), Some("no route"));
        assert!(!probe.finish(no_route()), "the change is reported once");
        assert!(probe.finish(Ok(())));
        assert!(!probe.finish(no_route()), "the count starts again");
    }

    #[test]
    fn a_cluster_that_hangs_is_probed_once_and_fails_with_each_ping_that_times_out() {
        let mut probe = ProbeState { has_succeeded: true, ..ProbeState::default() };
        assert!(probe.try_begin() && !probe.try_begin(), "a probe is in flight");
        assert!(!probe.time_out() && !probe.time_out() && probe.error.is_none());
        assert!(probe.time_out());
        assert_eq!(probe.error.as_deref(), Some(NO_ANSWER));
        assert!(probe.finish(Ok(())) && probe.try_begin());
        assert!(!probe.finish(Ok(())) && !probe.time_out(), "no probe is in flight");
    }
}
