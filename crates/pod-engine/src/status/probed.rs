//! Whether containers have started and are ready: by their probes, and without probes by running.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use super::{Situation, conditions::READY, containers::ended};
use crate::{
    parts::{is_sidecar, part},
    probe::{Kind, Verdict},
};

/// How much older than this process a container must be to have run before it.
const BEFORE: Duration = Duration::from_secs(10);

/// Puts in `started` and `ready`. Ephemeral containers have neither.
pub(super) fn compose(situation: &Situation<'_>, status: &mut PodStatus) {
    for status in status.container_statuses.iter_mut().flatten() {
        if let Some(part) = part(situation.pod, &status.name) {
            serve(situation, &part.container, status);
        }
    }
    for status in status.init_container_statuses.iter_mut().flatten() {
        let Some(part) = part(situation.pod, &status.name) else { continue };
        if is_sidecar(&part.container) {
            serve(situation, &part.container, status);
        } else {
            status.started = Some(has_started(situation, &part.container, status));
            status.ready |= ended(status.state.as_ref()).is_some_and(|ended| ended.exit_code == 0);
        }
    }
}

fn serve(situation: &Situation<'_>, spec: &Container, status: &mut ContainerStatus) {
    let started = has_started(situation, spec, status);
    status.started = Some(started);
    if started {
        status.ready = is_ready(situation, spec, status);
    }
}

fn has_started(situation: &Situation<'_>, spec: &Container, status: &ContainerStatus) -> bool {
    if running_id(situation, status).is_none() {
        return false;
    }
    match verdict(situation, status, Kind::Startup) {
        Some(verdict) => verdict == Verdict::Success,
        None => status.started == Some(true) || spec.startup_probe.is_none(),
    }
}

fn is_ready(situation: &Situation<'_>, spec: &Container, status: &ContainerStatus) -> bool {
    let verdict = verdict(situation, status, Kind::Readiness);
    if verdict == Some(Verdict::Success) || spec.readiness_probe.is_none() {
        return true;
    }
    // One that ran before this process did, and is not probed yet, is what the pod was.
    let running = status.state.as_ref().and_then(|state| state.running.as_ref());
    let begun = running.and_then(|running| running.started_at.as_ref()).map(|time| time.0);
    let is_old = situation.since.zip(begun).is_some_and(|(since, begun)| begun < since - BEFORE);
    let there = situation.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let was_ready = || there.into_iter().any(|one| one.type_ == READY && one.status == "True");
    verdict.is_none() && is_old && was_ready()
}

fn verdict(situation: &Situation<'_>, status: &ContainerStatus, kind: Kind) -> Option<Verdict> {
    situation.verdicts.get(running_id(situation, status)?, kind)
}

/// The runtime's id of a container that runs.
fn running_id<'a>(situation: &Situation<'_>, status: &'a ContainerStatus) -> Option<&'a str> {
    status.state.as_ref()?.running.as_ref()?;
    status.container_id.as_deref()?.strip_prefix(situation.runtime)?.strip_prefix("://")
}
