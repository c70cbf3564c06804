//! The next actions for a pod. Pure: no clock, no I/O.
//!
//! The rules and the user-visible texts are those of kubelet 1.36: progress of init containers, restarts, back-off, when a sandbox is
//! recreated, the order in which a pod is stopped and the grace period of each container. Everything is derived from the pod and from the
//! runtime's state. Only [`CrashBackoffs`] is kept in memory; after a restart [`CrashBackoffs::adopt`] rebuilds it.
//!
//! Two rules are stricter than the kubelet's, in situations that a kubelet does not expect: the record of an init container counts only in
//! its own sandbox, and a second live instance of a container is stopped.

mod backoff;
mod container_actions;
mod garbage;
mod init;
mod restart;
mod sandbox;
mod stop_order;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

pub use self::{
    backoff::{BackoffKey, Crash, CrashBackoffs},
    garbage::{Garbage, find_garbage},
    stop_order::{MIN_GRACE, StopReason, StopStep, grace_period, remaining_grace, stop_message, stop_order},
};
pub use vk_provider::restart_policy::should_restart;

pub(crate) use self::sandbox::needs_sandbox;
use crate::{
    containers::Role,
    probe::result::ProbeResults,
    snapshot::{Sandbox, Snapshot},
    status::FailureReason,
};

/// The input of [`compute_plan`].
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// The pod, with the status that was computed last: a pod that is Succeeded or Failed stays so, and its deadline counts from its
    /// `startTime`.
    pub pod: &'a Pod,
    /// The runtime's state of the pod, newest first.
    pub snapshot: &'a Snapshot,
    /// Results of the pod's probes.
    pub probe_results: &'a ProbeResults,
    /// Crash back-off of the containers.
    pub backoffs: &'a CrashBackoffs,
    /// The current time.
    pub now: Timestamp,
}

/// The next actions for a pod, in the order of the fields. They refer to the snapshot of the input: a container that is stopped here may
/// also be started here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlan {
    /// Stop all containers by [`stop_order`], then every sandbox. If that fails, do not continue.
    pub stop_all: bool,
    /// Stop these containers, one after the other. If that fails, do not continue.
    pub stop: Vec<StopContainer>,
    /// Remove these containers. If that fails, continue.
    pub remove: Vec<RemoveContainer>,
    /// The sandbox in which containers are started.
    pub sandbox: SandboxPlan,
    /// Start these containers, one after the other, each after [`CrashBackoffs::begin`]. If an init container does not start, do not
    /// continue.
    pub start: Vec<StartContainer>,
    /// Containers that wait for their back-off.
    pub deferred: Vec<DeferredStart>,
    /// When to plan again if nothing happens before.
    pub next_deadline: Option<Timestamp>,
}

/// The sandbox in which containers are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxPlan {
    /// Keep the sandbox with this id.
    Keep(String),
    /// Create a new one.
    Create {
        /// Its attempt number.
        attempt: u32,
        /// The sandbox that it replaces, if an event reports that.
        replaces: Option<String>,
    },
    /// No sandbox: nothing of this pod runs again.
    None,
}

/// A container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopContainer {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The message of the event `Killing`.
    pub message: String,
    /// Why it is stopped, which determines its grace period.
    pub reason: StopReason,
}

/// A container to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveContainer {
    /// Its id.
    pub id: String,
    /// Whether its log is kept.
    pub keep_log: bool,
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartContainer {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its restart count, if the runtime knows an earlier instance.
    pub restarts: Option<u32>,
    /// The end of the previous instance, from which the back-off counts.
    pub crash: Option<Crash>,
}

/// A container that is not started before its back-off ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredStart {
    /// Its name.
    pub name: String,
    /// The end of the back-off.
    pub until: Timestamp,
    /// The waiting reason of its status: `CrashLoopBackOff`.
    pub failure: FailureReason,
    /// The message of the event `BackOff`.
    pub event: String,
}

/// Computes the next actions for a pod that is meant to run.
pub fn compute_plan(input: &PlanInput<'_>) -> PodPlan {
    let PlanInput { pod, snapshot, now, .. } = *input;
    if is_finished(pod, now) {
        return PodPlan::finished(snapshot);
    }
    let mut plan = match sandbox::decide(pod, snapshot) {
        sandbox::SandboxDecision::Keep(sandbox) => match container_actions::in_sandbox(input, sandbox) {
            Some(actions) => actions.plan(input, SandboxPlan::Keep(sandbox.id.clone())),
            None => PodPlan {
                remove: container_actions::superfluous(pod, snapshot),
                ..PodPlan::finished(snapshot)
            },
        },
        sandbox::SandboxDecision::Create { attempt, replaces } => {
            match container_actions::in_new_sandbox(pod, snapshot, attempt) {
                Some(actions) => {
                    let replaces = replaces.map(|sandbox: &Sandbox| sandbox.id.clone());
                    actions.plan(input, SandboxPlan::Create { attempt, replaces })
                }
                None => PodPlan {
                    remove: container_actions::superfluous(pod, snapshot),
                    ..PodPlan::finished(snapshot)
                },
            }
        }
    };
    if plan.sandbox != SandboxPlan::None {
        plan.next_deadline = [plan.next_deadline, active_deadline(pod)].into_iter().flatten().min();
    }
    plan
}

/// When the pod's `activeDeadlineSeconds` end, if it has started and has a deadline.
fn active_deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?;
    start.0.saturating_add(jiff::SignedDuration::from_secs(seconds)).ok()
}

fn is_finished(pod: &Pod, now: Timestamp) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some()
        || matches!(phase, Some("Succeeded" | "Failed"))
        || active_deadline(pod).is_some_and(|deadline| now >= deadline)
}

// === impl Plan ===

impl PodPlan {
    /// The plan of a finished pod: nothing of it may run.
    fn finished(snapshot: &Snapshot) -> Self {
        Self {
            stop_all: snapshot.is_live(),
            stop: Vec::new(),
            remove: Vec::new(),
            sandbox: SandboxPlan::None,
            start: Vec::new(),
            deferred: Vec::new(),
            next_deadline: None,
        }
    }
}
