//! One simulated pod: its state and scheduled changes.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use vk_provider::{Error, PodRef, Result};

use super::{
    Cidr,
    container::{PodOutline, Role, SimulatedContainer, State},
    request::DesiredPod,
    usage::{UsageCounter, UsageRate},
};
use crate::{lifecycle::Lifecycle, time::after};

/// The maximum back-off, as in a kubelet.
const MAX_BACKOFF: Duration = Duration::from_mins(5);
/// The minimum delay of a restart, so that a container that ends immediately does not spin.
const MIN_RESTART: Duration = Duration::from_millis(100);

/// A simulated pod.
pub(super) struct SimulatedPod {
    pub(super) reference: PodRef,
    pub(super) node: Arc<str>,
    pub(super) host_ip: IpAddr,
    /// Its address and the range of the address; `None` on the host network.
    pub(super) address: Option<(Cidr, IpAddr)>,
    pub(super) outline: Arc<PodOutline>,
    pub(super) containers: Vec<SimulatedContainer>,
    pub(super) created: Timestamp,
    /// When all init containers had completed.
    pub(super) initialized: Option<Timestamp>,
    /// Whether all containers are ready, and since when.
    pub(super) ready: (bool, Timestamp),
    /// Why the pod as a whole failed.
    pub(super) failed: Option<Failure>,
    life: Arc<Lifecycle>,
    /// Its final phase.
    over: Option<Phase>,
    stop: Option<Stop>,
    /// When the ended pod is removed.
    forget_at: Option<Timestamp>,
    /// Its entry in the simulator's timers.
    pub(super) due: Option<Timestamp>,
}

/// Why a pod as a whole failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    DeadlineExceeded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// The result of advancing a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdvanceOutcome {
    Nothing,
    Changed,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    since: Timestamp,
    kill_at: Timestamp,
}

/// A scheduled change of a pod.
#[derive(Clone, Copy, Debug)]
enum Event {
    Start(usize),
    Ready(usize),
    End(usize, i32),
    Deadline,
    Vanish,
    Forget,
}

// === impl Phase ===

impl Phase {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    pub(super) fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

// === impl SimulatedPod ===

impl SimulatedPod {
    pub(super) fn new(
        now: Timestamp,
        reference: PodRef,
        desired: DesiredPod,
        address: Option<(Cidr, IpAddr)>,
    ) -> Self {
        let outline = PodOutline::of(&desired.pod);
        let containers = outline.containers.iter().map(|_| SimulatedContainer::new()).collect();
        let mut entry = Self {
            reference,
            node: desired.node,
            host_ip: desired.host_ip,
            address,
            outline: Arc::new(outline),
            containers,
            created: now,
            initialized: None,
            ready: (false, now),
            failed: None,
            life: desired.life,
            over: None,
            stop: None,
            forget_at: None,
            due: None,
        };
        entry.update_state(now);
        entry
    }

    /// Applies a changed spec. A container with a new image restarts, as in a kubelet, regardless of the restart policy.
    pub(super) fn update(&mut self, now: Timestamp, desired: DesiredPod) -> Result<()> {
        let mut images = Vec::new();
        let outline = PodOutline::of(&desired.pod);
        for (index, (old, new)) in self.outline.containers.iter().zip(&outline.containers).enumerate() {
            if old.name != new.name {
                return Err(Error::invalid(format!(
                    "update pod {}: container {} cannot become {}",
                    self.reference, old.name, new.name
                )));
            }
            if old.image != new.image {
                images.push(index);
            }
        }
        if outline.lasting() != self.outline.lasting() {
            return Err(Error::invalid(format!(
                "update pod {}: containers can be neither added nor removed",
                self.reference
            )));
        }
        self.outline = Arc::new(outline);
        self.life = desired.life;
        self.host_ip = desired.host_ip;
        let count = self.outline.containers.len().max(self.containers.len());
        self.containers.resize_with(count, SimulatedContainer::new);
        if self.over.is_none() && self.stop.is_none() {
            for index in images {
                let container = &mut self.containers[index];
                if container.is_running() {
                    container.restart(now, now);
                }
            }
        }
        for (spec, container) in self.outline.containers.iter().zip(&mut self.containers) {
            if container.is_running() {
                container.meter.set(now, UsageRate::of(&self.life, &self.reference.uid, &spec.name));
            }
        }
        self.update_state(now);
        Ok(())
    }

    /// Begins to stop, or shortens the grace period.
    pub(super) fn stop(&mut self, now: Timestamp, grace: Duration) {
        let kill_at = after(now, grace);
        self.stop = Some(match self.stop {
            Some(stop) => Stop { kill_at: stop.kill_at.min(kill_at), ..stop },
            None => Stop { since: now, kill_at },
        });
        for container in &mut self.containers {
            if !container.is_running() {
                container.end(now, 137);
            }
        }
        self.update_state(now);
    }

    /// Whether it was stopped and has ended.
    pub(super) fn has_stopped(&self) -> bool {
        self.forget_at.is_some()
    }

    /// Ends a running container.
    pub(super) fn finish(&mut self, now: Timestamp, name: &str, code: i32) -> Result<()> {
        let index = self.outline.containers.iter().position(|spec| *spec.name == *name);
        let container = index.and_then(|index| self.containers.get_mut(index)).ok_or_else(|| {
            Error::not_found(format!("finish container {name}: pod {} has none", self.reference))
        })?;
        let State::Running { ends, .. } = &mut container.state else {
            return Err(Error::unavailable(format!(
                "finish container {name} of pod {}: not running",
                self.reference
            )));
        };
        *ends = Some((now, code));
        self.advance(now);
        Ok(())
    }

    /// Processes all changes that are due, each at its scheduled time.
    pub(super) fn advance(&mut self, now: Timestamp) -> AdvanceOutcome {
        let mut passed = AdvanceOutcome::Nothing;
        while let Some((at, event)) = self.next_event().filter(|(at, _)| *at <= now) {
            passed = AdvanceOutcome::Changed;
            match event {
                Event::Start(index) => self.start(at, index),
                Event::Ready(index) => {
                    if let State::Running { ready, .. } = &mut self.containers[index].state {
                        *ready = true;
                    }
                }
                Event::End(index, code) => self.containers[index].end(at, code),
                Event::Deadline => {
                    self.failed = Some(Failure::DeadlineExceeded);
                    self.containers.iter_mut().for_each(|container| container.end(at, 137));
                }
                Event::Vanish | Event::Forget => return AdvanceOutcome::Gone,
            }
            self.update_state(at);
        }
        passed
    }

    /// When the next change is due.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.next_event().map(|(at, _)| at)
    }

    /// The phase, as the kubelet's `getPhase` computes it.
    pub(super) fn phase(&self) -> Phase {
        if let Some(phase) = self.over {
            return phase;
        }
        if self.failed.is_some() {
            return Phase::Failed;
        }
        // A pod has not ended while a container is still stopping.
        let stopping = self.stop.is_some() && self.containers.iter().any(SimulatedContainer::is_running);
        let (mut waiting, mut alive, mut bad) = (false, stopping, false);
        for (spec, container) in self.outline.containers.iter().zip(&self.containers) {
            match (spec.role, container.ended()) {
                (Role::Regular, Some(ended)) => {
                    bad |= ended.code != 0;
                    waiting |= ended.started.is_none();
                }
                (Role::Regular, None) => {
                    alive = true;
                    waiting |= !container.has_started();
                }
                (Role::Init, Some(ended)) if ended.code != 0 && !stopping => return Phase::Failed,
                _ => {}
            }
        }
        match (alive, waiting || self.initialized.is_none()) {
            (true, true) => Phase::Pending,
            (true, false) => Phase::Running,
            (false, _) if bad => Phase::Failed,
            (false, _) => Phase::Succeeded,
        }
    }

    /// Usage counters of its containers, by name.
    pub(super) fn meters(&self) -> BTreeMap<String, UsageCounter> {
        let all = self.outline.containers.iter().zip(&self.containers);
        let ran = all.filter(|(_, container)| container.has_started());
        ran.map(|(spec, container)| (spec.name.to_string(), container.meter)).collect()
    }

    fn start(&mut self, at: Timestamp, index: usize) {
        let Some(spec) = self.outline.containers.get(index) else { return };
        let ends = match spec.role {
            Role::Init => Some((after(at, self.life.init_run_for), self.life.init_exit_code)),
            Role::Regular => self.life.run_for.map(|time| (after(at, time), self.life.exit_code)),
            Role::Sidecar | Role::Ephemeral => None,
        };
        let usage = UsageRate::of(&self.life, &self.reference.uid, &spec.name);
        let ready_at = after(at, self.life.ready_delay);
        let container = &mut self.containers[index];
        container.meter.start(at, usage);
        if container.last.is_some() {
            container.restarts = container.restarts.saturating_add(1);
        }
        container.state = State::Running { since: at, ready: ready_at <= at, ready_at, ends };
    }

    fn next_event(&self) -> Option<(Timestamp, Event)> {
        let mut first: Option<(Timestamp, Event)> = None;
        let mut offer = |at: Option<Timestamp>, event: Event| {
            if let Some(at) = at
                && first.is_none_or(|(earliest, _)| at < earliest)
            {
                first = Some((at, event));
            }
        };
        for (index, container) in self.containers.iter().enumerate() {
            match container.state {
                State::Waiting { until } => offer(until, Event::Start(index)),
                State::Running { ready, ready_at, ends, .. } => {
                    if let Some((at, code)) = ends {
                        offer(Some(at), Event::End(index, code));
                    }
                    if let Some((at, code)) = self.stop_end() {
                        offer(Some(at), Event::End(index, code));
                    }
                    offer((!ready).then_some(ready_at), Event::Ready(index));
                }
                State::Ended(_) => {}
            }
        }
        offer(self.deadline(), Event::Deadline);
        offer(self.life.vanish_after.map(|time| after(self.created, time)), Event::Vanish);
        offer(self.forget_at, Event::Forget);
        first
    }

    /// When a stopped container ends, and with which code.
    fn stop_end(&self) -> Option<(Timestamp, i32)> {
        let stop = self.stop?;
        let stopped = after(stop.since, self.life.stop_delay);
        Some(if stopped <= stop.kill_at { (stopped, 0) } else { (stop.kill_at, 137) })
    }

    /// When `activeDeadlineSeconds` fails the pod.
    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.outline.deadline?;
        let over = self.stop.is_some() || self.over.is_some();
        let seconds = u64::try_from(seconds).ok().filter(|_| !over)?;
        Some(after(self.created, Duration::from_secs(seconds)))
    }

    /// Updates the state after a change: starts waiting containers, restarts ended ones, and detects the end of the pod.
    fn update_state(&mut self, now: Timestamp) {
        let outline = Arc::clone(&self.outline);
        if self.stop.is_none() && self.over.is_none() && self.failed.is_none() {
            self.restart_ended(now, &outline);
            self.start_waiting(now, &outline);
        }
        let phase = self.phase();
        if phase.is_terminal() {
            self.over = Some(phase);
            // Sidecars and debug containers live no longer than the containers that they are for.
            for (spec, container) in outline.containers.iter().zip(&mut self.containers) {
                let alive = match container.state {
                    State::Waiting { until } => until.is_some(),
                    State::Running { .. } => self.stop.is_none(),
                    State::Ended(_) => false,
                };
                if alive && matches!(spec.role, Role::Sidecar | Role::Ephemeral) {
                    container.end(now, 0);
                }
            }
        }
        if self.stop.is_some() && self.containers.iter().all(|container| container.ended().is_some()) {
            self.forget_at.get_or_insert_with(|| after(now, self.life.keep_ended));
        }
        let mut counted = outline
            .containers
            .iter()
            .zip(&self.containers)
            .filter(|(spec, _)| matches!(spec.role, Role::Regular | Role::Sidecar));
        let ready = counted.all(|(_, container)| container.is_ready());
        if ready != self.ready.0 {
            self.ready = (ready, now);
        }
    }

    /// Schedules restarts of ended containers.
    fn restart_ended(&mut self, now: Timestamp, outline: &PodOutline) {
        for (spec, container) in outline.containers.iter().zip(&mut self.containers) {
            if let Some(ended) = container.ended()
                && spec.restart.restarts(ended.code)
            {
                let doublings = u32::try_from(container.restarts).unwrap_or(0).min(16);
                let wait = self.life.restart_backoff.saturating_mul(1 << doublings).min(MAX_BACKOFF);
                container.restart(now, after(now, wait.max(MIN_RESTART)));
            }
        }
    }

    /// Schedules starts of waiting containers: init containers one after the other, then all others.
    fn start_waiting(&mut self, now: Timestamp, outline: &PodOutline) {
        let start = now.max(after(self.created, self.life.start_delay));
        for (spec, container) in outline.containers.iter().zip(&mut self.containers) {
            let init = matches!(spec.role, Role::Init | Role::Sidecar);
            if !init && self.initialized.is_none() {
                self.initialized = Some(now);
            }
            if let State::Waiting { until: until @ None } = &mut container.state {
                *until = Some(start);
            }
            let passed = match spec.role {
                Role::Init => container.ended().is_some_and(|ended| ended.code == 0),
                Role::Sidecar => container.has_started(),
                Role::Regular | Role::Ephemeral => true,
            };
            // After initialisation, a restarting sidecar does not block others.
            if !passed && self.initialized.is_none() {
                return;
            }
        }
    }
}
