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
    machine::{Machine, Moment, Step, seconds},
    pod::Shared,
    prober::{Outcome, Subject},
    verdict::Kind,
};

/// What a pod's owner and a probe's task share.
pub(super) struct Worker {
    pub(super) kind: Kind,
    pub(super) container: Arc<Container>,
    /// Whether it goes on until the pod is gone, even while the pod is being stopped.
    pub(super) outlasts: bool,
    pub(super) sidecar: bool,
    /// Wakes the task before its time; kept when it is busy.
    pub(super) nudge: Notify,
    /// Whether only another container is worth a nudge.
    pub(super) resting: AtomicBool,
}

// === impl Worker ===

impl Worker {
    fn probe(&self) -> Option<&Probe> {
        match self.kind {
            Kind::Liveness => self.container.liveness_probe.as_ref(),
            Kind::Readiness => self.container.readiness_probe.as_ref(),
            Kind::Startup => self.container.startup_probe.as_ref(),
        }
    }

    /// Probes at the probe's period until there is nothing more to probe.
    pub(super) async fn run(self: Arc<Self>, shared: Arc<Shared>) {
        let Some(probe) = self.probe() else { return };
        let period = seconds(probe.period_seconds, 10).max(Duration::from_secs(1));
        if let Some(offset) = shared.prober.offset(period) {
            sleep(offset).await;
        }
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut machine = Machine::new(self.kind, probe, self.sidecar);
        loop {
            match self.turn(&mut machine, probe, &shared).await {
                Step::End => return,
                Step::Rest => {
                    self.nudge.notified().await;
                    ticks.reset();
                }
                Step::Wait | Step::Probe => tokio::select! {
                    _ = ticks.tick() => {}
                    () = self.nudge.notified() => ticks.reset(),
                },
            }
        }
    }

    /// One turn.
    async fn turn(&self, machine: &mut Machine, probe: &Probe, shared: &Shared) -> Step {
        let (step, changed, ip) = {
            let mut state = shared.state.lock();
            let state = &mut *state;
            let moment = Moment {
                target: state.targets.get(&self.container.name),
                over: state.over,
                stopping: state.stopping && !self.outlasts,
                agent_started: shared.prober.started(),
                now: shared.prober.clock.now(),
            };
            let (step, changed) = machine.look(&moment, &mut state.verdicts);
            self.resting.store(step == Step::Rest, Relaxed);
            (step, changed, state.ip.clone())
        };
        // Told without the lock: whoever hears of it looks at the verdicts.
        shared.changed(changed);
        let (Step::Probe, Some(id)) = (step, machine.container()) else { return step };
        let subject = Subject { pod: &shared.pod, container: &self.container, id, ip: ip.as_deref() };
        // Boxed: a task that waits for its turn, as nearly all do, is small.
        let outcome = Box::pin(shared.prober.probe(probe, subject)).await;
        let success = self.tell(outcome, shared);
        if let Some(success) = success {
            let mut state = shared.state.lock();
            // After the last word nothing more is said.
            let counts = !state.stopping || self.outlasts;
            let changed = counts && machine.heard(success, &mut state.verdicts);
            drop(state);
            shared.changed(changed);
        }
        step
    }

    /// Tells what is worth an event, and returns the result if it is one.
    fn tell(&self, outcome: Outcome, shared: &Shared) -> Option<bool> {
        let kind = self.kind;
        let (success, reason, message) = match outcome {
            Outcome::Success => return Some(true),
            Outcome::Warning(text) => (Some(true), "ProbeWarning", format!("{kind} probe warning: {text}")),
            Outcome::Failure(text) => (Some(false), "Unhealthy", format!("{kind} probe failed: {text}")),
            Outcome::Error { state, message } => {
                (None, "Unhealthy", format!("{kind} probe errored and resulted in {state} state: {message}"))
            }
        };
        (shared.tell)(PodEvent {
            pod: shared.pod.clone(),
            container: Some(self.container.name.clone()),
            kind: EventKind::Warning,
            reason: reason.to_owned(),
            message,
        });
        success
    }
}
