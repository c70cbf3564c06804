//! Whether containers have started and are ready: by their probes, or without probes because they run.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};
use vk_provider::requests::is_sidecar;

use super::{StatusInput, conditions::READY, containers::terminated};
use crate::{
    containers::find_container,
    probe::{ProbeKind, ProbeResult},
};

/// A container that is older than this process by this much ran before it.
const MIN_AGE: Duration = Duration::from_secs(10);

/// Sets `started` and `ready`. Ephemeral containers have neither.
pub(super) fn compose(input: &StatusInput<'_>, status: &mut PodStatus) {
    for status in status.container_statuses.iter_mut().flatten() {
        if let Some(container) = find_container(input.pod, &status.name) {
            set_readiness(input, &container.spec, status);
        }
    }
    for status in status.init_container_statuses.iter_mut().flatten() {
        let Some(container) = find_container(input.pod, &status.name) else { continue };
        if is_sidecar(&container.spec) {
            set_readiness(input, &container.spec, status);
        } else {
            status.started = Some(has_started(input, &container.spec, status));
            status.ready |= terminated(status.state.as_ref()).is_some_and(|ended| ended.exit_code == 0);
        }
    }
}

fn set_readiness(input: &StatusInput<'_>, spec: &Container, status: &mut ContainerStatus) {
    let started = has_started(input, spec, status);
    status.started = Some(started);
    if started {
        status.ready = is_ready(input, spec, status);
    }
}

fn has_started(input: &StatusInput<'_>, spec: &Container, status: &ContainerStatus) -> bool {
    if running_id(input, status).is_none() {
        return false;
    }
    match probe_result(input, status, ProbeKind::Startup) {
        Some(result) => result == ProbeResult::Success,
        None => status.started == Some(true) || spec.startup_probe.is_none(),
    }
}

fn is_ready(input: &StatusInput<'_>, spec: &Container, status: &ContainerStatus) -> bool {
    let result = probe_result(input, status, ProbeKind::Readiness);
    if result == Some(ProbeResult::Success) || spec.readiness_probe.is_none() {
        return true;
    }
    // A container that ran before this process and is not probed yet keeps the readiness of the pod.
    let running = status.state.as_ref().and_then(|state| state.running.as_ref());
    let begun = running.and_then(|running| running.started_at.as_ref()).map(|time| time.0);
    let is_old = input.since.zip(begun).is_some_and(|(since, begun)| begun < since - MIN_AGE);
    let stored = input.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let was_ready = || stored.into_iter().any(|one| one.type_ == READY && one.status == "True");
    result.is_none() && is_old && was_ready()
}

fn probe_result(input: &StatusInput<'_>, status: &ContainerStatus, kind: ProbeKind) -> Option<ProbeResult> {
    input.probe_results.get(running_id(input, status)?, kind)
}

/// The runtime's id of a running container.
fn running_id<'a>(input: &StatusInput<'_>, status: &'a ContainerStatus) -> Option<&'a str> {
    status.state.as_ref()?.running.as_ref()?;
    status.container_id.as_deref()?.strip_prefix(input.runtime)?.strip_prefix("://")
}
