//! When a container is to be probed and what a result means. Pure: one machine for one kind of probe of one container name,
//! through all containers that have this name one after the other.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Probe;

use super::verdict::{Kind, Verdict, Verdicts};

/// A container that ran for so long before we did was there before us: its verdicts are not begun anew, because a restart of ours
/// must not make a ready pod unready.
const BEFORE_US: SignedDuration = SignedDuration::from_secs(10);

/// One probe's memory.
#[derive(Clone, Debug)]
pub struct Machine {
    kind: Kind,
    sidecar: bool,
    initial_delay: Duration,
    failures: u32,
    successes: u32,
    container: Option<String>,
    last: Option<bool>,
    run: u32,
    on_hold: bool,
}

/// The container to probe, as the last look at the pod found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The runtime's id.
    pub id: String,
    /// Since when it runs; `None` when it does not.
    pub running: Option<Timestamp>,
    /// Whether another one will be started in its place when it has ended.
    pub returns: bool,
    /// Whether the status says that it has started: what liveness and readiness wait for.
    pub started: bool,
}

/// What a machine needs to know of the world.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The container, once there is one.
    pub target: Option<&'a Target>,
    /// Whether the pod's phase is final.
    pub over: bool,
    /// Whether the pod is being stopped, for a probe that then has to end.
    pub stopping: bool,
    /// When the agent was started.
    pub agent_started: Timestamp,
    /// Now.
    pub now: Timestamp,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing until the next turn.
    Wait,
    /// Probe now, and tell [`Machine::heard`] the result if there is one.
    Probe,
    /// Nothing until there is another container.
    Rest,
    /// Nothing any more.
    End,
}

// === impl Machine ===

impl Machine {
    /// A machine for a probe.
    pub fn new(kind: Kind, probe: &Probe, sidecar: bool) -> Self {
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

    /// The container that the next result is about.
    pub fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }

    /// Takes a turn. Also tells whether a verdict changed that the pod's owner has to know.
    pub fn look(&mut self, moment: &Moment<'_>, verdicts: &mut Verdicts) -> (Step, bool) {
        if moment.over {
            self.forget(verdicts);
            return (Step::End, false);
        }
        if moment.stopping {
            return (Step::End, self.last_word(moment, verdicts));
        }
        let Some(target) = moment.target else { return (Step::Wait, false) };
        let mut changed = false;
        if self.container.as_deref() != Some(&target.id) {
            self.forget(verdicts);
            self.container = Some(target.id.clone());
            changed |= self.begin(target, moment, verdicts);
            self.on_hold = false;
        }
        if self.on_hold {
            return (Step::Wait, changed);
        }
        let Some(since) = target.running else {
            changed |= self.set(Verdict::Failure, verdicts);
            if target.returns {
                return (Step::Wait, changed);
            }
            // What has ended for good is not asked about; a pod that is restarted as a whole brings another id.
            self.forget(verdicts);
            return (Step::Rest, changed);
        };
        if whole_seconds_between(since, moment.now) < self.initial_delay.as_secs() {
            return (Step::Wait, changed);
        }
        let due = target.started != (self.kind == Kind::Startup);
        (if due { Step::Probe } else { Step::Wait }, changed)
    }

    /// Takes a result. An error is no result and is not told. Tells whether a verdict changed that the pod's owner has to know.
    pub fn heard(&mut self, success: bool, verdicts: &mut Verdicts) -> bool {
        if self.last == Some(success) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(success);
            self.run = 1;
        }
        if self.run < if success { self.successes } else { self.failures } {
            return false;
        }
        let changed = self.set(if success { Verdict::Success } else { Verdict::Failure }, verdicts);
        if self.kind == Kind::Startup || (self.kind == Kind::Liveness && !success) {
            // It is to be restarted, or has started: nothing more to ask this container.
            self.on_hold = true;
            self.run = 0;
        }
        changed
    }

    /// The first verdict on a new container.
    fn begin(&self, target: &Target, moment: &Moment<'_>, verdicts: &mut Verdicts) -> bool {
        let before_us =
            target.running.is_some_and(|since| moment.agent_started.duration_since(since) > BEFORE_US);
        if !before_us {
            return self.set(initial(self.kind), verdicts);
        }
        // Whether a pod is initialized is found out from the startup verdicts of its sidecars, so theirs must be there.
        self.sidecar && self.kind == Kind::Startup && target.started && self.set(Verdict::Success, verdicts)
    }

    /// A verdict that makes nobody act: what is about to be stopped is neither killed for it nor held back.
    fn last_word(&mut self, moment: &Moment<'_>, verdicts: &mut Verdicts) -> bool {
        self.forget(verdicts);
        let running = moment.target.filter(|target| target.running.is_some());
        self.container = running.map(|target| target.id.clone());
        self.set(Verdict::Success, verdicts)
    }

    fn set(&self, verdict: Verdict, verdicts: &mut Verdicts) -> bool {
        let Some(container) = &self.container else { return false };
        verdicts.set(container, self.kind, verdict)
            && (self.kind != Kind::Liveness || verdict == Verdict::Failure)
    }

    fn forget(&self, verdicts: &mut Verdicts) {
        if let Some(container) = &self.container {
            verdicts.remove(container, self.kind);
        }
    }
}

/// What counts before any result.
fn initial(kind: Kind) -> Verdict {
    match kind {
        Kind::Liveness => Verdict::Success,
        Kind::Readiness => Verdict::Failure,
        Kind::Startup => Verdict::Unknown,
    }
}

/// A number of seconds of a probe, with the API's default.
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
