//! Queries on a pod's status.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

/// Identifies one start of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: Option<String>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) restarts: i32,
}

pub(crate) fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

/// Whether the phase is terminal.
pub(crate) fn is_final(status: &PodStatus) -> bool {
    vk_provider::pod::is_terminal_phase(status.phase.as_deref())
}

/// The statuses of all containers: init, regular, ephemeral.
pub(crate) fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten()
}

pub(crate) fn container<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    containers(status).find(|container| container.name == name)
}

pub(crate) fn state(container: &ContainerStatus) -> ContainerState {
    container.state.clone().unwrap_or_default()
}

/// Whether the pod and all its regular containers are running.
pub(crate) fn is_running(status: &PodStatus) -> bool {
    let mut regular = status.container_statuses.iter().flatten().peekable();
    phase(status) == "Running"
        && regular.peek().is_some()
        && regular.all(|container| state(container).running.is_some())
}

/// Whether nothing of the pod runs any more, by the core's rule: every container has ended, or has not started and never will because the phase
/// is terminal.
pub(crate) fn is_over(status: &PodStatus) -> bool {
    let mut all = containers(status).peekable();
    if all.peek().is_none() {
        return is_final(status);
    }
    all.all(|container| {
        let state = state(container);
        state.running.is_none() && (state.terminated.is_some() || is_final(status))
    })
}

pub(crate) fn instance(status: &PodStatus, name: &str) -> Option<Instance> {
    let container = container(status, name)?;
    let started = state(container).running.and_then(|running| running.started_at).map(|time| time.0);
    Some(Instance { id: container.container_id.clone(), started, restarts: container.restart_count })
}

/// The first difference between the containers of two statuses of a pod that should not have changed.
pub(crate) fn disturbed(before: &PodStatus, after: &PodStatus) -> Option<String> {
    containers(before).find_map(|container| {
        let (old, new) = (instance(before, &container.name), instance(after, &container.name));
        (old != new).then(|| format!("container {} was {old:?} and is {new:?}", container.name))
    })
}

/// A one-line summary of a status.
pub(crate) fn summary(status: &PodStatus) -> String {
    let mut text = format!("phase {:?}", phase(status));
    for container in containers(status) {
        let state = state(container);
        let _ = write!(text, ", {}", container.name);
        if let Some(waiting) = &state.waiting {
            let _ = write!(text, " waiting ({})", waiting.reason.as_deref().unwrap_or("no reason"));
        }
        if state.running.is_some() {
            text.push_str(" running");
        }
        if let Some(ended) = &state.terminated {
            let _ = write!(text, " ended with {}", ended.exit_code);
        }
        if container.restart_count != 0 {
            let _ = write!(text, " after {} restarts", container.restart_count);
        }
    }
    if containers(status).next().is_none() {
        text.push_str(", no container statuses");
    }
    text
}
