//! When a container is probed and what an outcome means. Pure. One tracker follows one probe of one container name, through all successive
//! instances of the container.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Probe;

use super::result::{ProbeKind, ProbeResult, ProbeResults};

/// A container that started this long before the agent keeps its results: a restart of the agent must not make a ready pod unready.
const STARTED_BEFORE_AGENT: SignedDuration = SignedDuration::from_secs(10);

/// The state of one probe.
#[derive(Clone, Debug)]
pub struct ProbeTracker {
    kind: ProbeKind,
    sidecar: bool,
    initial_delay: Duration,
    failures: u32,
    successes: u32,
    container: Option<String>,
    last: Option<bool>,
    run: u32,
    on_hold: bool,
}

/// The container to probe, in its last observed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    /// The runtime's id.
    pub id: String,
    /// Its start time; `None` if it does not run.
    pub running: Option<Timestamp>,
    /// Whether it is restarted after it exits.
    pub is_restarted: bool,
    /// Whether it has started by its status: liveness and readiness wait for that.
    pub started: bool,
}

/// The input of [`ProbeTracker::next_step`].
#[derive(Clone, Copy, Debug)]
pub struct ProbeInput<'a> {
    /// The container, if it exists.
    pub target: Option<&'a ProbeTarget>,
    /// Whether the pod's phase is final.
    pub finished: bool,
    /// Whether the pod is being stopped and this probe has to end.
    pub stopping: bool,
    /// When the agent was started.
    pub agent_started: Timestamp,
    /// The current time.
    pub now: Timestamp,
}

/// The next step of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// Wait for the next period.
    Wait,
    /// Probe now, and pass a result to [`ProbeTracker::record_result`].
    Probe,
    /// Wait for another container.
    Rest,
    /// The probe ends.
    End,
}

// === impl ProbeTracker ===

impl ProbeTracker {
    /// A tracker for this probe.
    pub fn new(kind: ProbeKind, probe: &Probe, sidecar: bool) -> Self {
        Self {
            kind,
            sidecar,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            failures: threshold(probe.failure_threshold, 3),
            successes: threshold(probe.success_threshold, 1),
            container: None,
            last: None,
            run: 0,
            on_hold: false,
        }
    }

    /// The container of the next result.
    pub fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }

    /// Determines the next step. Also returns whether a result changed that requires a sync of the pod.
    pub fn next_step(
        &mut self,
        input: &ProbeInput<'_>,
        probe_results: &mut ProbeResults,
    ) -> (ProbeStep, bool) {
        if input.finished {
            self.forget(probe_results);
            return (ProbeStep::End, false);
        }
        if input.stopping {
            return (ProbeStep::End, self.finish(input, probe_results));
        }
        let Some(target) = input.target else { return (ProbeStep::Wait, false) };
        let mut changed = false;
        if self.container.as_deref() != Some(&target.id) {
            self.forget(probe_results);
            self.container = Some(target.id.clone());
            changed |= self.begin(target, input, probe_results);
            self.on_hold = false;
        }
        if self.on_hold {
            return (ProbeStep::Wait, changed);
        }
        let Some(since) = target.running else {
            changed |= self.set(ProbeResult::Failure, probe_results);
            if target.is_restarted {
                return (ProbeStep::Wait, changed);
            }
            // A container that exited permanently is not probed. If all containers are restarted, it has another id.
            self.forget(probe_results);
            return (ProbeStep::Rest, changed);
        };
        if whole_seconds_between(since, input.now) < self.initial_delay.as_secs() {
            return (ProbeStep::Wait, changed);
        }
        let due = target.started != (self.kind == ProbeKind::Startup);
        (if due { ProbeStep::Probe } else { ProbeStep::Wait }, changed)
    }

    /// Records an outcome that is a success or a failure. Returns whether a result changed that requires a sync of the pod.
    pub fn record_result(&mut self, success: bool, probe_results: &mut ProbeResults) -> bool {
        if self.last == Some(success) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(success);
            self.run = 1;
        }
        if self.run < if success { self.successes } else { self.failures } {
            return false;
        }
        let changed =
            self.set(if success { ProbeResult::Success } else { ProbeResult::Failure }, probe_results);
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && !success) {
            // It is going to be restarted, or it has started: this container needs no further probe.
            self.on_hold = true;
            self.run = 0;
        }
        changed
    }

    /// Sets the initial result of a new container.
    fn begin(&self, target: &ProbeTarget, input: &ProbeInput<'_>, probe_results: &mut ProbeResults) -> bool {
        let started_before_agent = target
            .running
            .is_some_and(|since| input.agent_started.duration_since(since) > STARTED_BEFORE_AGENT);
        if !started_before_agent {
            return self.set(initial(self.kind), probe_results);
        }
        // Initialization of the pod depends on the startup results of its sidecars.
        self.sidecar
            && self.kind == ProbeKind::Startup
            && target.started
            && self.set(ProbeResult::Success, probe_results)
    }

    /// Sets a result without consequences: a container that is being stopped is not restarted.
    fn finish(&mut self, input: &ProbeInput<'_>, probe_results: &mut ProbeResults) -> bool {
        self.forget(probe_results);
        let running = input.target.filter(|target| target.running.is_some());
        self.container = running.map(|target| target.id.clone());
        self.set(ProbeResult::Success, probe_results)
    }

    fn set(&self, result: ProbeResult, probe_results: &mut ProbeResults) -> bool {
        let Some(container) = &self.container else { return false };
        probe_results.set(container, self.kind, result)
            && (self.kind != ProbeKind::Liveness || result == ProbeResult::Failure)
    }

    fn forget(&self, probe_results: &mut ProbeResults) {
        if let Some(container) = &self.container {
            probe_results.remove(container, self.kind);
        }
    }
}

/// The result before the first outcome.
fn initial(kind: ProbeKind) -> ProbeResult {
    match kind {
        ProbeKind::Liveness => ProbeResult::Success,
        ProbeKind::Readiness => ProbeResult::Failure,
        ProbeKind::Startup => ProbeResult::Unknown,
    }
}

/// A duration of a probe in seconds, with the API's default.
pub(crate) fn seconds(given: Option<i32>, default: u32) -> Duration {
    Duration::from_secs(given.map_or(default, |given| u32::try_from(given).unwrap_or(default)).into())
}

fn threshold(given: Option<i32>, default: u32) -> u32 {
    given.and_then(|given| u32::try_from(given).ok()).filter(|given| *given > 0).unwrap_or(default)
}

fn whole_seconds_between(since: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
