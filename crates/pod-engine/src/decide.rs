//! What to do next with a pod. Pure: no clock, no I/O.
//!
//! The rules are those of a kubelet 1.36, word for word where words are seen by people: how far initialisation has come, who is
//! restarted, who waits in back-off, when a sandbox is made anew, in which order a pod is stopped and how long each may take.
//! Everything is derived from the pod and from what the runtime says; the one thing kept in memory, the [`Backoffs`], is found
//! again after a restart with [`Backoffs::adopt`].
//!
//! Where this is more careful than a kubelet, it is so only in situations that a kubelet does not expect: an init container's
//! record counts only in the sandbox that it is in, and a second live instance of a container is stopped.

mod backoff;
mod garbage;
mod identity;
mod init;
mod restart;
mod sandbox;
#[cfg(test)]
mod simulation;
mod stop;
#[cfg(test)]
mod tests;
mod work;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

pub use self::{
    backoff::{Backoffs, Crash, Key},
    garbage::{Garbage, garbage},
    identity::{hash, restarts_by_logs},
    restart::should_restart,
    stop::{LEAST_GRACE, Turn, Why, effective_grace, grace, left, stop_order, stopping},
};
use crate::{
    parts::Role,
    probe::verdict::Verdicts,
    snapshot::{Sandbox, Snapshot},
    status::Trouble,
};

/// What a pod whose time is over is told, in its status and in an event of reason `DeadlineExceeded`.
pub const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// All that counts.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The pod, with the status that was computed last: a pod that is Succeeded or Failed stays so, and the time since its
    /// `startTime` counts.
    pub pod: &'a Pod,
    /// What the runtime has of it, newest first.
    pub snapshot: &'a Snapshot,
    /// What probes have found out.
    pub verdicts: &'a Verdicts,
    /// Who crashed when.
    pub backoffs: &'a Backoffs,
    /// Now.
    pub now: Timestamp,
}

/// What to do, in the order of the fields. It is made for the snapshot as it was: a container that is stopped here may be started
/// here, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Stop everything by [`stop_order`], then every sandbox. If that fails, go no further.
    pub stop_all: bool,
    /// Stop these, one after the other. If that fails, go no further.
    pub stop: Vec<Stop>,
    /// Remove these. If that fails, go on.
    pub remove: Vec<Remove>,
    /// Where containers are started.
    pub sandbox: SandboxPlan,
    /// Start these, one after the other, each after [`Backoffs::begin`]. When a plain init container does not start, go no further.
    pub start: Vec<Start>,
    /// These wait.
    pub held: Vec<Held>,
    /// When to plan again, if nothing happens before.
    pub look_again: Option<Timestamp>,
}

/// The sandbox that containers are started in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxPlan {
    /// The one with this id.
    Keep(String),
    /// A new one.
    Create {
        /// Its number.
        attempt: u32,
        /// The one that it replaces, where people are told about that.
        replaces: Option<String>,
    },
    /// None: nothing of this pod runs any more, ever.
    None,
}

/// A container to be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What the event of reason `Killing` says.
    pub message: String,
    /// Why: its grace depends on it.
    pub why: Why,
}

/// A container to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remove {
    /// Its id.
    pub id: String,
    /// Whether its log stays.
    pub keep_log: bool,
}

/// A container to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its restart count, when the runtime knows an instance before it.
    pub restarts: Option<u32>,
    /// The end of the instance before it, from which back-off counts.
    pub crash: Option<Crash>,
}

/// A container that is to be started, and not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// Until when.
    pub until: Timestamp,
    /// What its status says: `CrashLoopBackOff`.
    pub trouble: Trouble,
    /// What the event of reason `BackOff` says.
    pub event: String,
}

/// What to do with a pod that shall run.
pub fn plan(situation: &Situation<'_>) -> Plan {
    let Situation { pod, snapshot, now, .. } = *situation;
    if is_over(pod, now) {
        return Plan::over(snapshot);
    }
    let mut plan = match sandbox::need(pod, snapshot) {
        sandbox::Need::Keep(sandbox) => match work::in_sandbox(situation, sandbox) {
            Some(work) => work.plan(situation, SandboxPlan::Keep(sandbox.id.clone())),
            None => Plan { remove: work::superfluous(pod, snapshot), ..Plan::over(snapshot) },
        },
        sandbox::Need::New { attempt, replaces } => match work::in_new_sandbox(pod, snapshot, attempt) {
            Some(work) => {
                let replaces = replaces.map(|sandbox: &Sandbox| sandbox.id.clone());
                work.plan(situation, SandboxPlan::Create { attempt, replaces })
            }
            None => Plan { remove: work::superfluous(pod, snapshot), ..Plan::over(snapshot) },
        },
    };
    if plan.sandbox != SandboxPlan::None {
        plan.look_again = [plan.look_again, deadline(pod)].into_iter().flatten().min();
    }
    plan
}

/// When the pod's `activeDeadlineSeconds` are over, if it has started and has a deadline.
pub fn deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?;
    start.0.saturating_add(jiff::SignedDuration::from_secs(seconds)).ok()
}

fn is_over(pod: &Pod, now: Timestamp) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        || vk_provider::pod::is_terminal(pod)
        || deadline(pod).is_some_and(|deadline| now >= deadline)
}

/// The pod as messages name it.
fn described(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{name}_{namespace}({})", metadata.uid.as_deref().unwrap_or_default())
}

// === impl Plan ===

impl Plan {
    /// Nothing shall run any more.
    fn over(snapshot: &Snapshot) -> Self {
        Self {
            stop_all: snapshot.is_live(),
            stop: Vec::new(),
            remove: Vec::new(),
            sandbox: SandboxPlan::None,
            start: Vec::new(),
            held: Vec::new(),
            look_again: None,
        }
    }

    /// Whether there is nothing to do now.
    pub fn is_idle(&self) -> bool {
        !self.stop_all
            && self.stop.is_empty()
            && self.remove.is_empty()
            && self.start.is_empty()
            && !matches!(self.sandbox, SandboxPlan::Create { .. })
    }
}

// === impl Start ===

impl Start {
    /// The restart count: what the runtime knows, and else what the log files of the container tell, which survive a runtime that
    /// forgets (see [`restarts_by_logs`]).
    pub fn restart_count(&self, by_logs: impl FnOnce() -> u32) -> u32 {
        self.restarts.unwrap_or_else(by_logs)
    }
}
