//! Who is stopped after whom, and how long each may take.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Probe};

use crate::{
    parts::{is_sidecar, part},
    snapshot::{Container, Snapshot, annotation},
};

/// What every container gets to end by itself, whatever was asked for.
pub const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Why a container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The pod is stopped, or its sandbox is made anew.
    Ordinary,
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its spec has changed.
    Changed,
    /// The runtime does not know whether it runs.
    Unknown,
    /// There is another one of its name.
    Duplicate,
    /// Its postStart hook failed.
    PostStart,
    /// Another container has ended in a way that restarts all.
    RestartAll,
}

/// One container's turn when a pod is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Those that must have ended before this one is stopped, as long as its grace lasts. Its preStop hook does not wait for them.
    pub after: Vec<String>,
}

/// What the event of reason `Killing` says when there is no special reason.
pub fn stopping(name: &str) -> String {
    format!("Stopping container {name}")
}

/// All that may run, with those for whom each waits: a sidecar for the regular containers and for the sidecars after it, in reverse order
/// of their start; nobody else waits. Without the pod nobody knows who is a sidecar.
pub fn stop_order(pod: Option<&Pod>, snapshot: &Snapshot) -> Vec<Turn> {
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
            Turn { id: container.id.clone(), name: container.name.clone(), after }
        })
        .collect()
}

/// How long a container has from the begin of its preStop hook to its end: what `remaining` says when the pod is being stopped, else
/// the pod's deletionGracePeriodSeconds, else what the failed probe says, else the pod's terminationGracePeriodSeconds, else
/// [`LEAST_GRACE`]. When the pod is gone, what was noted on the container counts.
pub fn grace(pod: Option<&Pod>, container: &Container, why: Why, remaining: Option<Duration>) -> Duration {
    if let Some(remaining) = remaining {
        return remaining;
    }
    if why == Why::RestartAll {
        return Duration::ZERO;
    }
    let noted = |key: &str| container.annotations.get(key).and_then(|seconds| seconds.parse::<i64>().ok());
    let (deletion, termination) = match pod {
        Some(pod) => (
            pod.metadata.deletion_grace_period_seconds,
            pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds),
        ),
        None => (noted(annotation::DELETION_GRACE), noted(annotation::TERMINATION_GRACE)),
    };
    let probe = |choose: fn(&k8s_openapi::api::core::v1::Container) -> Option<&Probe>| {
        let part = part(pod?, &container.name)?;
        choose(&part.container)?.termination_grace_period_seconds
    };
    let of_probe = match why {
        Why::Liveness => probe(|container| container.liveness_probe.as_ref()),
        Why::Startup => probe(|container| container.startup_probe.as_ref()),
        _ => None,
    };
    // A probe's grace counts only beside the pod's, which the API server always sets.
    let seconds = deletion.or_else(|| termination.map(|termination| of_probe.unwrap_or(termination)));
    seconds.map_or(LEAST_GRACE, |seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)))
}

/// What is left of a grace for the runtime to wait before it kills: whole seconds that were spent are gone, and [`LEAST_GRACE`] is always
/// left.
pub fn left(grace: Duration, spent: Duration) -> Duration {
    grace.saturating_sub(Duration::from_secs(spent.as_secs())).max(LEAST_GRACE)
}

/// The grace of a pod that is being stopped, when it was `before` and somebody `asked` for another: it only ever becomes shorter, and
/// is never under a second.
pub fn effective_grace(pod: &Pod, before: Option<Duration>, asked: Option<Duration>) -> Duration {
    let seconds = |seconds: i64| Duration::from_secs(seconds.try_into().unwrap_or(0));
    let deletion = pod.metadata.deletion_grace_period_seconds.map(seconds);
    let shortest = [before, deletion, asked].into_iter().flatten().min();
    let wanted = || pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).map(seconds);
    shortest.or_else(wanted).unwrap_or_default().max(Duration::from_secs(1))
}
