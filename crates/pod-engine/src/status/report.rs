//! Completing a status: its times, the status after termination, and the status that is reported.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use vk_provider::requests::is_sidecar;

use super::{
    conditions::{CONTAINERS_READY, READY, finished_condition},
    containers::{NOT_LOCATED, STATUS_UNKNOWN, lost, terminated},
    is_finished, whole_seconds,
};
use crate::containers::{Role, pod_containers};

/// Maximum total size of the termination messages of a pod, in bytes.
const MAX_MESSAGE_BYTES: usize = 12 * 1024;

/// The status of a terminated pod: containers that should exist and do not have failed, and the phase is final. Call it when everything is
/// stopped, with the status from [`compute_status`](super::compute_status). As in the kubelet, the API server's status determines whether
/// regular containers were due: the last init container may have succeeded only because it was stopped.
pub fn terminated_status(pod: &Pod, status: &PodStatus) -> PodStatus {
    let mut final_status = status.clone();
    let nothing = PodStatus::default();
    if is_initialized(pod, pod.status.as_ref().unwrap_or(&nothing)) {
        final_status.container_statuses.iter_mut().flatten().for_each(mark_lost);
    }
    let inits = final_status.init_container_statuses.as_deref_mut().unwrap_or_default();
    // All that were started, and at least the first.
    let begun = inits.iter().rposition(is_begun).map_or(1, |last| last + 1);
    inits.iter_mut().take(begun).for_each(mark_lost);
    if !is_finished(&final_status) {
        final_status.phase = Some("Failed".to_owned());
    }
    final_status
}

fn mark_lost(status: &mut ContainerStatus) {
    if terminated(status.state.as_ref()).is_none() {
        status.state = Some(lost(STATUS_UNKNOWN, NOT_LOCATED));
        // An earlier final status may have shown it as running.
        status.started = status.started.map(|_| false);
        status.ready = false;
    }
}

/// Whether the container was ever in a state other than waiting.
fn is_begun(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    !waits || terminated(status.last_state.as_ref()).is_some()
}

/// Whether initialization was complete, so that regular containers were due.
fn is_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let inits = pod_containers(pod).filter(|container| matches!(container.role, Role::Init | Role::Sidecar));
    let Some(last) = inits.last() else { return true };
    if status.container_statuses.iter().flatten().any(is_begun) {
        return true;
    }
    let statuses = status.init_container_statuses.as_deref().unwrap_or_default();
    let Some(status) = statuses.iter().find(|status| status.name == last.spec.name) else {
        return false;
    };
    if is_sidecar(&last.spec) {
        let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
        return runs && status.started == Some(true);
    }
    let succeeded =
        |state: Option<&ContainerState>| terminated(state).is_some_and(|ended| ended.exit_code == 0);
    succeeded(status.state.as_ref()) || succeeded(status.last_state.as_ref())
}

/// The status to report: while something of the pod may run it is not reported as finished, whatever its containers say. `before` is the
/// status that was reported last.
pub fn reported_status(status: &PodStatus, before: Option<&PodStatus>, live: bool) -> PodStatus {
    let mut reported = status.clone();
    if !is_finished(status) {
        return reported;
    }
    if live && !before.is_some_and(is_finished) {
        reported.phase =
            before.and_then(|before| before.phase.clone()).or_else(|| Some("Pending".to_owned()));
        reported.reason = before.and_then(|before| before.reason.clone());
        reported.message = before.and_then(|before| before.message.clone());
        return reported;
    }
    // A finished pod is not ready.
    let phase = reported.phase.clone().unwrap_or_default();
    let conditions = reported.conditions.as_deref_mut().unwrap_or_default();
    let is_readiness = |kind: &str| matches!(kind, READY | CONTAINERS_READY);
    if conditions.iter().any(|one| is_readiness(&one.type_) && one.status == "True") {
        for one in conditions.iter_mut().filter(|one| is_readiness(&one.type_)) {
            let Some(finished) = finished_condition(&one.type_, &phase) else { continue };
            *one = k8s_openapi::api::core::v1::PodCondition {
                observed_generation: one.observed_generation,
                last_transition_time: one.last_transition_time.clone(),
                ..finished
            };
        }
    }
    reported
}

/// Sets the times: a transition time changes only with the status of its condition, the start time never.
pub(super) fn set_times(status: &mut PodStatus, old: &PodStatus, now: Timestamp) {
    for condition in status.conditions.iter_mut().flatten() {
        let before = old.conditions.iter().flatten().find(|before| before.type_ == condition.type_);
        let same = before.filter(|before| before.status == condition.status);
        let kept = same.and_then(|before| before.last_transition_time.clone());
        condition.last_transition_time = kept.or_else(|| Some(whole_seconds(now)));
    }
    status.start_time = old.start_time.clone().or_else(|| Some(whole_seconds(now)));
}

/// Truncates termination messages that exceed the total limit.
pub(super) fn trim_messages(pod: &Pod, status: &mut PodStatus) {
    let limit = MAX_MESSAGE_BYTES / pod_containers(pod).count().max(1);
    let lists = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for status in lists.into_iter().flatten().flatten() {
        for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
            let message = state.terminated.as_mut().and_then(|ended| ended.message.as_mut());
            if let Some(message) = message.filter(|message| message.len() > limit) {
                let end = (0..=limit).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
                message.truncate(end);
            }
        }
    }
}
