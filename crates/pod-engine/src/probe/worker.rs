//! The task of one probe.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};
use vk_provider::{EventKind, PodEvent};

use super::{
    pod_probes::PodProbeContext,
    prober::{ProbeOutcome, ProbeRequest},
    result::ProbeKind,
    tracker::{ProbeInput, ProbeStep, ProbeTracker, seconds},
};

/// A probe, shared by its task and the pod's task.
pub(super) struct ProbeWorker {
    pub(super) kind: ProbeKind,
    pub(super) container: Arc<Container>,
    /// Whether it continues while the pod is being stopped.
    pub(super) outlasts: bool,
    pub(super) sidecar: bool,
    /// Wakes the task before the next period.
    pub(super) wake: Notify,
    /// Whether only another container wakes the task.
    pub(super) resting: AtomicBool,
}

// === impl Worker ===

impl ProbeWorker {
    fn probe(&self) -> Option<&Probe> {
        match self.kind {
            ProbeKind::Liveness => self.container.liveness_probe.as_ref(),
            ProbeKind::Readiness => self.container.readiness_probe.as_ref(),
            ProbeKind::Startup => self.container.startup_probe.as_ref(),
        }
    }

    /// Probes periodically until the probe ends.
    pub(super) async fn run(self: Arc<Self>, shared: Arc<PodProbeContext>) {
        let Some(probe) = self.probe() else { return };
        let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
        if let Some(offset) = shared.prober.initial_offset(period) {
            sleep(offset).await;
        }
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut tracker = ProbeTracker::new(self.kind, probe, self.sidecar);
        loop {
            match self.tick(&mut tracker, probe, &shared).await {
                ProbeStep::End => return,
                ProbeStep::Rest => {
                    self.wake.notified().await;
                    ticks.reset();
                }
                ProbeStep::Wait | ProbeStep::Probe => tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.wake.notified() => ticks.reset(),
                },
            }
        }
    }

    /// One period.
    async fn tick(&self, tracker: &mut ProbeTracker, probe: &Probe, shared: &PodProbeContext) -> ProbeStep {
        let (step, changed, ip) = {
            let mut state = shared.state.lock();
            let state = &mut *state;
            let input = ProbeInput {
                target: state.targets.get(&self.container.name),
                finished: state.finished,
                stopping: state.stopping && !self.outlasts,
                agent_started: shared.prober.started(),
                now: shared.prober.clock.now(),
            };
            let (step, changed) = tracker.next_step(&input, &mut state.probe_results);
            self.resting.store(step == ProbeStep::Rest, Relaxed);
            (step, changed, state.ip.clone())
        };
        // Notified without the lock: the receiver reads the results.
        shared.notify_if(changed);
        let (ProbeStep::Probe, Some(id)) = (step, tracker.container()) else { return step };
        let subject = ProbeRequest { pod: &shared.pod, container: &self.container, id, ip: ip.as_deref() };
        // Boxed: most tasks are idle and need no memory for a probe.
        let outcome = Box::pin(shared.prober.probe(probe, subject)).await;
        let success = self.record_event(outcome, shared);
        if let Some(success) = success {
            let mut state = shared.state.lock();
            // A probe that has ended sets no result.
            let counts = !state.stopping || self.outlasts;
            let changed = counts && tracker.record_result(success, &mut state.probe_results);
            drop(state);
            shared.notify_if(changed);
        }
        step
    }

    /// Records an event if needed. Returns whether the probe succeeded; `None` if it could not be run.
    fn record_event(&self, outcome: ProbeOutcome, shared: &PodProbeContext) -> Option<bool> {
        let kind = self.kind;
        let (success, reason, message) = match outcome {
            ProbeOutcome::Success => return Some(true),
            ProbeOutcome::Warning(text) => {
                (Some(true), "ProbeWarning", format!("{kind} probe warning: {text}"))
            }
            ProbeOutcome::Failure(text) => (Some(false), "Unhealthy", format!("{kind} probe failed: {text}")),
            ProbeOutcome::Error { state, message } => {
                (None, "Unhealthy", format!("{kind} probe errored and resulted in {state} state: {message}"))
            }
        };
        (shared.record)(PodEvent {
            pod: shared.pod.clone(),
            container: Some(self.container.name.clone()),
            kind: EventKind::Warning,
            reason: reason.to_owned(),
            message,
        });
        success
    }
}
