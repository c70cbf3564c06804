//! Containers in the answers of the service.

use jiff::Timestamp;
use vk_container_group::backend::{ContainerState, ObservedContainer, Termination};

use super::Notes;
use crate::api::{
    ContainerState as ApiState, GroupContainer, List, PodContainer, StatusState, StatusTermination,
};

/// The containers of `DescribeContainerGroups`; `None` if there is no list.
pub(super) fn of_group(list: &List<GroupContainer>, notes: &mut Notes) -> Option<Vec<ObservedContainer>> {
    let items = list.items.as_ref()?;
    Some(items.iter().filter_map(|item| group_container(item, notes)).collect())
}

/// The containers of `DescribeContainerGroupStatus`; `None` if there is no list.
pub(super) fn of_status(list: &List<PodContainer>, notes: &mut Notes) -> Option<Vec<ObservedContainer>> {
    // A pod that has not started yet has no containers in the feed, but it has some.
    let items = list.items.as_ref().filter(|items| !items.is_empty())?;
    Some(items.iter().filter_map(|item| status_container(item, notes)).collect())
}

/// When the container has started for the first time, if the service tells.
pub(super) fn first_start(container: &ObservedContainer) -> Option<Timestamp> {
    match container.restarts {
        None | Some(0) => {}
        Some(1) => return container.previous.as_ref()?.started,
        // The service tells the last two starts.
        Some(_) => return None,
    }
    match container.state.as_ref()? {
        ContainerState::Running { started } => *started,
        ContainerState::Terminated(termination) => termination.started,
        ContainerState::Waiting { .. } => None,
    }
}

fn group_container(item: &GroupContainer, notes: &mut Notes) -> Option<ObservedContainer> {
    let name = item.name.owned()?;
    let state = item.current_state.get().and_then(|state| container_state(&name, state, notes));
    let previous = item.previous_state.get().filter(|state| state.state.get() == Some("Terminated"));
    Some(ObservedContainer {
        previous: previous.map(|state| termination(&name, state, notes)),
        state,
        restarts: item.restart_count.to(),
        ready: item.ready.0,
        started: None,
        image: item.image.owned(),
        image_id: None,
        container_id: None,
        name,
    })
}

fn container_state(name: &str, state: &ApiState, notes: &mut Notes) -> Option<ContainerState> {
    Some(match state.state.get()? {
        "Waiting" => {
            let reason = state.reason.owned().or_else(|| state.detail_status.owned());
            ContainerState::Waiting { reason, message: state.message.owned() }
        }
        "Running" => ContainerState::Running { started: notes.time("StartTime", state.start_time.get()) },
        "Terminated" => ContainerState::Terminated(termination(name, state, notes)),
        other => {
            notes.add(&format!("state of container {name}"), other);
            return None;
        }
    })
}

fn termination(name: &str, state: &ApiState, notes: &mut Notes) -> Termination {
    Termination {
        exit_code: exit_code(name, state.exit_code.0, notes),
        signal: state.signal.to().filter(|signal| *signal != 0),
        reason: state.reason.owned().or_else(|| state.detail_status.owned()),
        message: state.message.owned(),
        started: notes.time("StartTime", state.start_time.get()),
        finished: notes.time("FinishTime", state.finish_time.get()),
    }
}

/// The exit code. One that does not fit is not a code.
fn exit_code(name: &str, code: Option<i64>, notes: &mut Notes) -> Option<i32> {
    let code = code?;
    let fits = i32::try_from(code).ok();
    if fits.is_none() {
        notes.add(&format!("exit code of container {name}"), &code.to_string());
    }
    fits
}

fn status_container(item: &PodContainer, notes: &mut Notes) -> Option<ObservedContainer> {
    let name = item.name.owned()?;
    let last = item.last_state.get().and_then(|state| state.terminated.get());
    Some(ObservedContainer {
        state: item.state.get().and_then(|state| status_state(&name, state, notes)),
        previous: last.map(|ended| status_termination(&name, ended, notes)),
        restarts: item.restart_count.to(),
        ready: item.ready.0,
        started: item.started.0,
        image: item.image.owned(),
        image_id: item.image_id.owned(),
        container_id: None,
        name,
    })
}

fn status_state(name: &str, state: &StatusState, notes: &mut Notes) -> Option<ContainerState> {
    if let Some(ended) = state.terminated.get() {
        return Some(ContainerState::Terminated(status_termination(name, ended, notes)));
    }
    if let Some(running) = state.running.get() {
        return Some(ContainerState::Running { started: notes.time("StartedAt", running.started_at.get()) });
    }
    let waiting = state.waiting.get()?;
    Some(ContainerState::Waiting { reason: waiting.reason.owned(), message: waiting.message.owned() })
}

fn status_termination(name: &str, ended: &StatusTermination, notes: &mut Notes) -> Termination {
    Termination {
        exit_code: exit_code(name, ended.exit_code.0, notes),
        signal: ended.signal.to().filter(|signal| *signal != 0),
        reason: ended.reason.owned(),
        message: ended.message.owned(),
        started: notes.time("StartedAt", ended.started_at.get()),
        finished: notes.time("FinishedAt", ended.finished_at.get()),
    }
}
