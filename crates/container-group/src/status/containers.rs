//! The status of each container.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, PodStatus,
};
use vk_provider::requests::is_sidecar;

use super::{StatusInput, has_ended, whole_seconds};
use crate::backend::{self, GroupState, Observed, ObservedContainer, Termination};

/// The kubelet's reason for a container whose end was not observed, and the exit code that it shows.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const UNKNOWN_EXIT_CODE: i32 = 137;

/// What a container is in its pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Init,
    Sidecar,
    Regular,
}

/// Sets the statuses of all containers: init containers in the order of the spec, the others sorted by name, as a kubelet does.
pub(super) fn compose(input: &StatusInput<'_>, old: &PodStatus, status: &mut PodStatus) {
    let observed = |select: fn(&Observed) -> &Option<Vec<ObservedContainer>>| {
        input.observed.and_then(|observed| select(observed).as_deref()).unwrap_or_default()
    };
    let (inits, regular) = (observed(|one| &one.init_containers), observed(|one| &one.containers));
    let spec = input.pod.and_then(|pod| pod.spec.as_ref());
    let known = |list: Option<&[Spec]>, seen: &[ObservedContainer]| match list {
        Some(list) => list.to_vec(),
        // The core has not said what the pod is: what the cloud shows is all there is.
        None => seen.iter().map(|one| Spec { name: one.name.clone(), ..Spec::default() }).collect(),
    };
    let init_specs = known(spec.map(|spec| spec.init_containers.as_deref().unwrap_or_default()), inits);
    let specs = known(spec.map(|spec| spec.containers.as_slice()), regular);
    let has_inits = !init_specs.is_empty();
    let find_old = |list: &Option<Vec<ContainerStatus>>, name: &str| {
        list.iter().flatten().find(|one| one.name == name).cloned()
    };
    let statuses = |specs: &[Spec], seen: &[ObservedContainer], old: &Option<Vec<ContainerStatus>>, init| {
        let compute = |spec: &Spec| {
            let role = match init {
                false => Role::Regular,
                true if is_sidecar(spec) => Role::Sidecar,
                true => Role::Init,
            };
            let before = find_old(old, &spec.name);
            let seen = seen.iter().find(|one| one.name == spec.name);
            container_status(input, spec, role, has_inits, seen, before.as_ref())
        };
        specs.iter().map(compute).collect::<Vec<_>>()
    };
    let inits = statuses(&init_specs, inits, &old.init_container_statuses, true);
    let mut regular = statuses(&specs, regular, &old.container_statuses, false);
    regular.sort_by(|a, b| a.name.cmp(&b.name));
    let filled = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
    status.init_container_statuses = filled(inits);
    status.container_statuses = filled(regular);
}

fn container_status(
    input: &StatusInput<'_>,
    spec: &Spec,
    role: Role,
    has_inits: bool,
    seen: Option<&ObservedContainer>,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let nothing = ObservedContainer::default();
    let seen = seen.unwrap_or(&nothing);
    let waiting_reason =
        if has_inits && role == Role::Regular { "PodInitializing" } else { "ContainerCreating" };
    let state = state(input, seen, old, waiting_reason);
    let running = state.running.is_some();
    let completed = state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0);
    let ready = match role {
        // An init container is ready when it has done its work.
        Role::Init => completed,
        Role::Sidecar | Role::Regular => running && seen.ready.unwrap_or_else(|| seen.started != Some(false)),
    };
    let begun = state.waiting.is_none();
    let last_state = seen.previous.as_ref().map(|ended| terminated(input, ended)).or_else(|| {
        let before = old?;
        let ended = before.state.as_ref().filter(|state| state.terminated.is_some() && !has_ended(input));
        ended.filter(|_| !completed && running).or(before.last_state.as_ref()).cloned()
    });
    let restarts = seen.restarts.unwrap_or_default().max(old.map_or(0, |old| old.restart_count));
    let id = || {
        let group = input.observed.map(|observed| &*observed.group.id)?;
        seen.container_id.clone().or_else(|| Some(container_id(input.runtime, group, &spec.name, restarts)))
    };
    ContainerStatus {
        name: spec.name.clone(),
        image: seen.image.clone().or_else(|| spec.image.clone()).unwrap_or_default(),
        image_id: seen.image_id.clone().or_else(|| old.map(|old| old.image_id.clone())).unwrap_or_default(),
        container_id: if begun { id() } else { old.and_then(|old| old.container_id.clone()) },
        restart_count: restarts,
        ready,
        started: begun.then(|| running && seen.started != Some(false)),
        state: Some(state),
        last_state,
        ..ContainerStatus::default()
    }
}

fn state(
    input: &StatusInput<'_>,
    seen: &ObservedContainer,
    old: Option<&ContainerStatus>,
    waiting_reason: &str,
) -> ContainerState {
    let ended = has_ended(input);
    match &seen.state {
        Some(backend::ContainerState::Terminated(ended)) => terminated(input, ended),
        // It has never run, as after a failed init container.
        Some(backend::ContainerState::Waiting { reason, message })
            if ended && seen.previous.is_none() && old.is_none_or(has_never_run) =>
        {
            waiting(reason.as_deref().unwrap_or(waiting_reason), message.clone())
        }
        // Nothing of the group runs: a container that did not say how it ended has ended all the same.
        _ if ended => {
            let before = old.and_then(|old| old.state.clone()).filter(|state| state.terminated.is_some());
            before.unwrap_or_else(|| lost(input, old))
        }
        Some(backend::ContainerState::Running { started }) => ContainerState {
            running: Some(ContainerStateRunning { started_at: started.map(whole_seconds) }),
            ..ContainerState::default()
        },
        Some(backend::ContainerState::Waiting { reason, message }) => {
            waiting(reason.as_deref().unwrap_or(waiting_reason), message.clone())
        }
        // The cloud has not said anything new.
        None => old
            .and_then(|old| old.state.clone())
            .filter(|state| state.waiting.is_none())
            .unwrap_or_else(|| waiting(waiting_reason, None)),
    }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn terminated(input: &StatusInput<'_>, ended: &Termination) -> ContainerState {
    let succeeded = input.observed.and_then(|observed| observed.state) == Some(GroupState::Succeeded);
    let by_signal = ended.signal.filter(|signal| *signal > 0).map(|signal| 128 + signal);
    let known = ended.exit_code.or(by_signal).or_else(|| succeeded.then_some(0));
    let exit_code = known.unwrap_or(UNKNOWN_EXIT_CODE);
    let default_reason = match (known, exit_code) {
        (None, _) => STATUS_UNKNOWN,
        (_, 0) => "Completed",
        _ => "Error",
    };
    // A container that never started has the epoch as its times.
    let time = |time: Option<Timestamp>| Some(whole_seconds(time.unwrap_or(Timestamp::UNIX_EPOCH)));
    let ended = ContainerStateTerminated {
        exit_code,
        signal: ended.signal,
        reason: Some(ended.reason.clone().unwrap_or_else(|| default_reason.to_owned())),
        message: ended.message.clone(),
        started_at: time(ended.started),
        finished_at: time(ended.finished),
        container_id: None,
    };
    ContainerState { terminated: Some(ended), ..ContainerState::default() }
}

/// The state of a container whose end was not observed.
fn lost(input: &StatusInput<'_>, old: Option<&ContainerStatus>) -> ContainerState {
    let running = old.and_then(|old| old.state.as_ref()?.running.as_ref());
    let ended = Termination {
        reason: Some(STATUS_UNKNOWN.to_owned()),
        message: Some("the cloud does not say how the container ended".to_owned()),
        started: running.and_then(|running| running.started_at.as_ref()).map(|time| time.0),
        finished: input.observed.and_then(|observed| observed.finished),
        ..Termination::default()
    };
    terminated(input, &ended)
}

/// The id of a container in a cloud that has none: always the same for the same group, name and start.
fn container_id(runtime: &str, group: &str, name: &str, restarts: i32) -> String {
    let start = if restarts == 0 { String::new() } else { format!("/{restarts}") };
    let text = format!("{group}/containers/{name}{start}").to_uppercase();
    let mut id = format!("{runtime}://");
    for byte in digest(&SHA256, text.as_bytes()).as_ref() {
        // Writing to a string does not fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// The exit code, if the container has ended.
pub(super) fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// Whether the container waits for its first start.
pub(super) fn has_never_run(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_none_or(|state| state.waiting.is_some());
    waits && status.last_state.is_none()
}
