//! What becomes of a status: its times, what is left at the end, and what others hear of it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

use super::{
    conditions::{CONTAINERS_READY, READY, over},
    containers::{NOT_LOCATED, STATUS_UNKNOWN, ended, lost},
    has_ended, whole,
};
use crate::parts::{Role, is_sidecar, parts};

/// Bytes that the termination messages of a pod have together.
const MESSAGES: usize = 12 * 1024;

/// The status of a pod of which nothing runs any more and nothing will: what was to be there and is not has failed, and the phase is final.
/// To be asked when everything is stopped, with what [`status`](super::status) says then. Whether regular containers were to run is asked of
/// what the API server has, as the kubelet does: the last init container may have ended well only because it was stopped.
pub fn settled(pod: &Pod, status: &PodStatus) -> PodStatus {
    let mut settled = status.clone();
    let nothing = PodStatus::default();
    if is_initialized(pod, pod.status.as_ref().unwrap_or(&nothing)) {
        settled.container_statuses.iter_mut().flatten().for_each(end);
    }
    let inits = settled.init_container_statuses.as_deref_mut().unwrap_or_default();
    // All of which something was seen; and the first anyway.
    let begun = inits.iter().rposition(is_begun).map_or(1, |last| last + 1);
    inits.iter_mut().take(begun).for_each(end);
    if !has_ended(&settled) {
        settled.phase = Some("Failed".to_owned());
    }
    settled
}

fn end(status: &mut ContainerStatus) {
    if ended(status.state.as_ref()).is_none() {
        status.state = Some(lost(STATUS_UNKNOWN, NOT_LOCATED));
        // A status that was final before may have shown it running.
        status.started = status.started.map(|_| false);
        status.ready = false;
    }
}

/// Whether it was ever anything but waiting.
fn is_begun(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    !waits || ended(status.last_state.as_ref()).is_some()
}

/// Whether the pod has come so far that its regular containers were to run.
fn is_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let inits = parts(pod).filter(|part| matches!(part.role, Role::Init | Role::Sidecar));
    let Some(last) = inits.last() else { return true };
    if status.container_statuses.iter().flatten().any(is_begun) {
        return true;
    }
    let statuses = status.init_container_statuses.as_deref().unwrap_or_default();
    let Some(status) = statuses.iter().find(|status| status.name == last.container.name) else {
        return false;
    };
    if is_sidecar(&last.container) {
        let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
        return runs && status.started == Some(true);
    }
    let well = |state: Option<&ContainerState>| ended(state).is_some_and(|ended| ended.exit_code == 0);
    well(status.state.as_ref()) || well(status.last_state.as_ref())
}

/// What others hear of a status: while something of the pod may run it has not ended, whatever its containers say. `before` is what they heard
/// last.
pub fn told(status: &PodStatus, before: Option<&PodStatus>, live: bool) -> PodStatus {
    let mut told = status.clone();
    if !has_ended(status) {
        return told;
    }
    if live && !before.is_some_and(has_ended) {
        told.phase = before.and_then(|before| before.phase.clone()).or_else(|| Some("Pending".to_owned()));
        told.reason = before.and_then(|before| before.reason.clone());
        told.message = before.and_then(|before| before.message.clone());
        return told;
    }
    // Nothing that has ended is ready.
    let phase = told.phase.clone().unwrap_or_default();
    let conditions = told.conditions.as_deref_mut().unwrap_or_default();
    let serves = |kind: &str| matches!(kind, READY | CONTAINERS_READY);
    if conditions.iter().any(|one| serves(&one.type_) && one.status == "True") {
        for one in conditions.iter_mut().filter(|one| serves(&one.type_)) {
            let Some(over) = over(&one.type_, &phase) else { continue };
            *one = k8s_openapi::api::core::v1::PodCondition {
                observed_generation: one.observed_generation,
                last_transition_time: one.last_transition_time.clone(),
                ..over
            };
        }
    }
    told
}

/// Puts in the times: those of conditions move only with their status, the pod's start never.
pub(super) fn stamp(status: &mut PodStatus, old: &PodStatus, now: Timestamp) {
    for condition in status.conditions.iter_mut().flatten() {
        let before = old.conditions.iter().flatten().find(|before| before.type_ == condition.type_);
        let same = before.filter(|before| before.status == condition.status);
        let kept = same.and_then(|before| before.last_transition_time.clone());
        condition.last_transition_time = kept.or_else(|| Some(whole(now)));
    }
    status.start_time = old.start_time.clone().or_else(|| Some(whole(now)));
}

/// Cuts termination messages that are together too long.
pub(super) fn trim(pod: &Pod, status: &mut PodStatus) {
    let limit = MESSAGES / parts(pod).count().max(1);
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
