//! The status of each container: from the runtime's two newest records of it, from the previous status, and from the failure that keeps it
//! from starting.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, Pod, PodStatus,
    VolumeMountStatus,
};
use vk_provider::restart_policy::{may_restart_all, should_restart};

use super::{
    StatusInput, find,
    pod_restart::{self, RESTARTING_ALL},
    whole_seconds,
};
use crate::{
    containers::{PodContainer, Role, pod_containers},
    snapshot::{self, Container},
};

/// Reason of a container whose exit status is unknown.
pub(super) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// The kubelet's message for a container that is missing when the pod is terminated.
pub(super) const NOT_LOCATED: &str = "The container could not be located when the pod was terminated";

/// Sets the statuses of all containers: init containers in the order of the spec, the others sorted by name.
pub(super) fn compose(input: &StatusInput<'_>, old: &PodStatus, status: &mut PodStatus) {
    let restarting = pod_restart::is_restarting(input.pod, input.snapshot, old);
    let list = |old: &Option<Vec<ContainerStatus>>, wanted: fn(Role) -> bool| {
        let old = old.as_deref().unwrap_or_default();
        let own = pod_containers(input.pod).filter(|container| wanted(container.role));
        own.map(|container| container_status(input, &container, find(old, &container.spec.name), restarting))
            .collect::<Vec<_>>()
    };
    let inits = list(&old.init_container_statuses, |role| matches!(role, Role::Init | Role::Sidecar));
    let mut regular = list(&old.container_statuses, |role| role == Role::Regular);
    let mut ephemeral = list(&old.ephemeral_container_statuses, |role| role == Role::Ephemeral);
    regular.sort_by(|a, b| a.name.cmp(&b.name));
    ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    let filled = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
    status.init_container_statuses = filled(inits);
    status.container_statuses = filled(regular);
    status.ephemeral_container_statuses = filled(ephemeral);
}

fn container_status(
    input: &StatusInput<'_>,
    container: &PodContainer<'_>,
    old: Option<&ContainerStatus>,
    restarting: bool,
) -> ContainerStatus {
    let spec = container.spec.as_ref();
    let mut records = input.snapshot.containers.iter().filter(|container| container.name == spec.name);
    let newest = records.next();
    let mut status = match newest {
        None => unrecorded(input, spec, old, restarting),
        Some(newest) => {
            let mut status = recorded(input, spec, newest, old, restarting);
            if let Some(earlier) = records.next() {
                status.last_state = Some(state(input, earlier, old, restarting));
            }
            status
        }
    };
    set_waiting(input, container, newest, &mut status);
    status
}

/// The status of a container without a record in the runtime: it has not started yet, or it is gone.
fn unrecorded(
    input: &StatusInput<'_>,
    spec: &Spec,
    old: Option<&ContainerStatus>,
    restarting: bool,
) -> ContainerStatus {
    let waits = |old: &ContainerStatus| old.state.as_ref().is_some_and(|state| state.waiting.is_some());
    if let Some(old) = old.filter(|old| restarting && !waits(old)) {
        return removed(input, spec, old);
    }
    if let Some(old) = old.filter(|old| terminated(old.state.as_ref()).is_some()) {
        return old.clone();
    }
    let has_inits =
        pod_containers(input.pod).any(|container| matches!(container.role, Role::Init | Role::Sidecar));
    let why = if has_inits { "PodInitializing" } else { "ContainerCreating" };
    let mut status = ContainerStatus {
        name: spec.name.clone(),
        image: spec.image.clone().unwrap_or_default(),
        state: Some(waiting(Some(why), None)),
        volume_mounts: mounts(input, spec),
        restart_count: old.map_or(0, |old| old.restart_count),
        last_state: old.and_then(|old| old.last_state.clone()),
        ..ContainerStatus::default()
    };
    let ran = old.is_some_and(|old| old.state.as_ref().is_some_and(|state| state.running.is_some()));
    if ran && terminated(status.last_state.as_ref()).is_none() {
        // It must not look as if it had never run, or the pod would be Pending again.
        let message =
            "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(lost(STATUS_UNKNOWN, message));
        if input.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count += 1;
        }
    }
    status
}

/// The status of a container that was removed because all containers are restarted.
fn removed(input: &StatusInput<'_>, spec: &Spec, old: &ContainerStatus) -> ContainerStatus {
    let message = "The container is removed because RestartAllContainers in place";
    let mut status = if terminated(old.state.as_ref()).is_some() {
        old.clone()
    } else {
        ContainerStatus {
            name: spec.name.clone(),
            image: spec.image.clone().unwrap_or_default(),
            volume_mounts: mounts(input, spec),
            ..ContainerStatus::default()
        }
    };
    status.state = Some(waiting(Some(RESTARTING_ALL), Some(message)));
    status.last_state = Some(lost(RESTARTING_ALL, message));
    status.restart_count = old.restart_count.saturating_add(1);
    status
}

/// The status of a container from the runtime's newest record.
fn recorded(
    input: &StatusInput<'_>,
    spec: &Spec,
    record: &Container,
    old: Option<&ContainerStatus>,
    restarting: bool,
) -> ContainerStatus {
    let id = input.container_id(&record.id);
    let count = i32::try_from(record.restart_count()).unwrap_or(i32::MAX);
    let state = state(input, record, old, restarting);
    let mut status = ContainerStatus {
        name: record.name.clone(),
        image: record.image.clone(),
        image_id: record.image_ref.clone(),
        restart_count: count.max(old.map_or(0, |old| old.restart_count)),
        resources: Some(spec.resources.clone().unwrap_or_default()),
        allocated_resources: spec.resources.as_ref().and_then(|resources| resources.requests.clone()),
        user: record.user.as_ref().map(user),
        // The runtime does not know volume names.
        volume_mounts: old.and_then(|old| old.volume_mounts.clone()).or_else(|| mounts(input, spec)),
        ..ContainerStatus::default()
    };
    if let Some(old) = old {
        let before =
            terminated(old.state.as_ref()).filter(|_| old.container_id.as_deref() != Some(id.as_str()));
        let before = before.or_else(|| terminated(old.last_state.as_ref())).cloned();
        status.last_state =
            before.map(|ended| ContainerState { terminated: Some(ended), ..ContainerState::default() });
        if state.running.is_some() {
            if terminated(old.state.as_ref()).is_some() && old.restart_count >= count {
                status.restart_count = old.restart_count.saturating_add(1);
            }
            status.started = old.started;
        } else if record.state == snapshot::ContainerState::Unknown && state.terminated.is_some() {
            // The runtime has no exit record that would count this instance.
            status.restart_count = old.restart_count.saturating_add(1);
        }
    }
    status.container_id = Some(id);
    status.state = Some(state);
    status
}

fn state(
    input: &StatusInput<'_>,
    record: &Container,
    old: Option<&ContainerStatus>,
    restarting: bool,
) -> ContainerState {
    let ran = old.is_some_and(|old| old.state.as_ref().is_some_and(|state| state.running.is_some()));
    // A container that never started has the epoch as its start time.
    let time = |time: Option<Timestamp>| Some(whole_seconds(time.unwrap_or(Timestamp::UNIX_EPOCH)));
    match record.state {
        snapshot::ContainerState::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(record.started) }),
            ..ContainerState::default()
        },
        snapshot::ContainerState::Exited => {
            let said = |text: &String| (!text.is_empty()).then(|| text.clone());
            let ended = ContainerStateTerminated {
                container_id: Some(input.container_id(&record.id)),
                exit_code: record.exit_code,
                reason: said(&record.reason),
                message: said(&record.message),
                started_at: time(record.started),
                finished_at: time(record.finished),
                signal: None,
            };
            ContainerState { terminated: Some(ended), ..ContainerState::default() }
        }
        snapshot::ContainerState::Unknown if ran => {
            lost(if restarting { RESTARTING_ALL } else { STATUS_UNKNOWN }, NOT_LOCATED)
        }
        snapshot::ContainerState::Unknown | snapshot::ContainerState::Created => waiting(None, None),
    }
}

/// Sets the waiting reason of a container that failed to start.
fn set_waiting(
    input: &StatusInput<'_>,
    container: &PodContainer<'_>,
    newest: Option<&Container>,
    status: &mut ContainerStatus,
) {
    let pod = input.pod;
    if matches!(container.role, Role::Init | Role::Sidecar) {
        let is_done = |one: &Container| one.state == snapshot::ContainerState::Exited && one.exit_code == 0;
        if newest.is_some_and(is_done) {
            return;
        }
        let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
        if newest.is_none() && container.role == Role::Init && waits && is_initialized(input) {
            let message = "Unable to get init container status from container runtime and pod has been initialized, \
                           treat it as exited normally";
            let ended = ContainerStateTerminated {
                reason: Some("Completed".to_owned()),
                message: Some(message.to_owned()),
                ..ContainerStateTerminated::default()
            };
            status.state = Some(ContainerState { terminated: Some(ended), ..ContainerState::default() });
            return;
        }
    }
    let starts = pod.metadata.deletion_timestamp.is_none()
        && newest.is_none_or(|record| match record.state {
            snapshot::ContainerState::Running => false,
            snapshot::ContainerState::Created | snapshot::ContainerState::Unknown => true,
            snapshot::ContainerState::Exited => should_restart(pod, &container.spec, record.exit_code),
        });
    let Some(failure) = input.failures.get(&container.spec.name).filter(|_| starts) else { return };
    if terminated(status.state.as_ref()).is_some() {
        status.last_state = status.state.take();
    }
    let message = Some(failure.message.as_str()).filter(|message| !message.is_empty());
    status.state = Some(waiting(Some(&failure.reason), message));
}

/// Whether a regular container was created, which happens only after all init containers.
fn is_initialized(input: &StatusInput<'_>) -> bool {
    let regular = pod_containers(input.pod).filter(|container| container.role == Role::Regular);
    let mut newest = regular.filter_map(|container| input.snapshot.newest(&container.spec.name));
    newest.any(|record| record.state != snapshot::ContainerState::Unknown)
}

/// Whether the transition is allowed: a container that has exited permanently does not run again.
pub(super) fn may_follow(pod: &Pod, old: &PodStatus, new: &PodStatus) -> bool {
    let Some(spec) = &pod.spec else { return true };
    if spec.restart_policy.as_deref().is_none_or(|policy| policy == "Always") || may_restart_all(pod) {
        return true;
    }
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let good =
        |containers: &[Spec], old: &Option<Vec<ContainerStatus>>, new: &Option<Vec<ContainerStatus>>| {
            old.iter().flatten().all(|old| {
                let container = containers.iter().find(|container| container.name == old.name);
                let Some((code, container)) =
                    terminated(old.state.as_ref()).map(|ended| ended.exit_code).zip(container)
                else {
                    return true;
                };
                let now = find(new.as_deref().unwrap_or_default(), &old.name);
                should_restart(pod, container, code)
                    || now.is_none_or(|now| terminated(now.state.as_ref()).is_some())
            })
        };
    good(&spec.containers, &old.container_statuses, &new.container_statuses)
        && good(inits, &old.init_container_statuses, &new.init_container_statuses)
}

/// The volume mount statuses of a container.
fn mounts(input: &StatusInput<'_>, spec: &Spec) -> Option<Vec<VolumeMountStatus>> {
    let mounts = spec.volume_mounts.as_deref().unwrap_or_default().iter();
    let mounts: Vec<_> = mounts
        .map(|mount| {
            let alone = mount.mount_propagation.as_deref().is_none_or(|propagation| propagation == "None");
            let asked = matches!(mount.recursive_read_only.as_deref(), Some("IfPossible" | "Enabled"));
            let recursive = if asked && alone && input.recursive_read_only { "Enabled" } else { "Disabled" };
            let read_only = mount.read_only == Some(true);
            VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only.then(|| recursive.to_owned()),
                ..VolumeMountStatus::default()
            }
        })
        .collect();
    (!mounts.is_empty()).then_some(mounts)
}

fn user(user: &snapshot::User) -> ContainerUser {
    let groups = user.supplemental_groups.clone();
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: (!groups.is_empty()).then_some(groups),
        }),
    }
}

/// The state of a container whose exit was not observed.
pub(super) fn lost(reason: &str, message: &str) -> ContainerState {
    let ended = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(ended), ..ContainerState::default() }
}

fn waiting(reason: Option<&str>, message: Option<&str>) -> ContainerState {
    let waiting =
        ContainerStateWaiting { reason: reason.map(str::to_owned), message: message.map(str::to_owned) };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// The termination state, if the container has terminated.
pub(super) fn terminated(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state?.terminated.as_ref()
}
