//! The order in which containers are stopped, and their grace periods.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Probe};

use vk_provider::requests::is_sidecar;

use crate::{
    containers::find_container,
    snapshot::{Container, Snapshot, annotation},
};

/// The minimum grace period of a container.
pub const MIN_GRACE: Duration = Duration::from_secs(2);

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The pod is stopped, or its sandbox is recreated.
    Ordinary,
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its spec has changed.
    Changed,
    /// The runtime does not know whether it runs.
    Unknown,
    /// Another instance with its name exists.
    Duplicate,
    /// Its postStart hook failed.
    PostStart,
    /// A restart rule of another container restarts all of them.
    RestartAll,
}

/// One step of stopping a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStep {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Ids of the containers that must exit before this one is stopped, within its grace period. Its preStop hook does not wait for them.
    pub after: Vec<String>,
}

/// The message of the event `Killing` without a special reason.
pub fn stop_message(name: &str) -> String {
    format!("Stopping container {name}")
}

/// All containers that may run, with those that each waits for: a sidecar waits for the regular containers and for the sidecars that
/// started after it. Other containers wait for none. Without the pod no container is known to be a sidecar.
pub fn stop_order(pod: Option<&Pod>, snapshot: &Snapshot) -> Vec<StopStep> {
    let spec = pod.and_then(|pod| pod.spec.as_ref());
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let sidecars: Vec<&str> = inits.iter().filter(|init| is_sidecar(init)).map(|init| &*init.name).collect();
    let live = || snapshot.containers.iter().filter(|container| container.may_run());
    live()
        .map(|container| {
            let place = sidecars.iter().position(|name| *name == container.name);
            let before = |other: &&Container| {
                place.is_some_and(|place| {
                    regular.iter().any(|regular| regular.name == other.name)
                        || sidecars[place + 1..].contains(&&*other.name)
                })
            };
            let after = live().filter(before).map(|other| other.id.clone()).collect();
            StopStep { id: container.id.clone(), name: container.name.clone(), after }
        })
        .collect()
}

/// The time from the start of the preStop hook to the kill: `remaining` when the pod is being deleted, else the pod's
/// deletionGracePeriodSeconds, else that of the failed probe, else the pod's terminationGracePeriodSeconds, else [`MIN_GRACE`]. Without the
/// pod the annotations of the container are used.
pub fn grace_period(
    pod: Option<&Pod>,
    container: &Container,
    reason: StopReason,
    remaining: Option<Duration>,
) -> Duration {
    if let Some(remaining) = remaining {
        return remaining;
    }
    if reason == StopReason::RestartAll {
        return Duration::ZERO;
    }
    let annotated =
        |key: &str| container.annotations.get(key).and_then(|seconds| seconds.parse::<i64>().ok());
    let (deletion, termination) = match pod {
        Some(pod) => (
            pod.metadata.deletion_grace_period_seconds,
            pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds),
        ),
        None => (annotated(annotation::DELETION_GRACE), annotated(annotation::TERMINATION_GRACE)),
    };
    let probe = |choose: fn(&k8s_openapi::api::core::v1::Container) -> Option<&Probe>| {
        let container = find_container(pod?, &container.name)?;
        choose(&container.spec)?.termination_grace_period_seconds
    };
    let of_probe = match reason {
        StopReason::Liveness => probe(|container| container.liveness_probe.as_ref()),
        StopReason::Startup => probe(|container| container.startup_probe.as_ref()),
        _ => None,
    };
    // A probe's grace period needs that of the pod, which the API server always sets.
    let seconds = deletion.or_else(|| termination.map(|termination| of_probe.unwrap_or(termination)));
    seconds.map_or(MIN_GRACE, |seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)))
}

/// How long the runtime waits before it kills: the grace period minus the whole seconds spent, at least [`MIN_GRACE`].
pub fn remaining_grace(grace: Duration, spent: Duration) -> Duration {
    grace.saturating_sub(Duration::from_secs(spent.as_secs())).max(MIN_GRACE)
}
