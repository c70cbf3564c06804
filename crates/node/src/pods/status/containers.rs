//! Container statuses: one for each container of the pod, in order, each in exactly one state.

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod,
        PodStatus, ResourceRequirements,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use vk_provider::{
    pod::STILL_RUNNING,
    restart_policy::{may_restart_all, should_restart},
};

/// A container of a pod's spec, for its status.
struct Member<'a> {
    name: &'a str,
    image: &'a str,
    restarts: Restarts<'a>,
    resources: Option<&'a ResourceRequirements>,
}

/// Whether a container may run again after it exited, by the API server's rule: it refuses the whole status otherwise.
#[derive(Clone, Copy)]
enum Restarts<'a> {
    /// An ephemeral container.
    Never,
    /// Any exit of any container may restart all.
    Always,
    /// Its rules, its own policy and the pod's decide.
    ByExitCode(&'a Pod, &'a Container),
}

// === impl Member ===

impl<'a> Member<'a> {
    fn of(pod: &'a Pod, container: &'a Container, restarts_all: bool) -> Self {
        let by_exit_code = Restarts::ByExitCode(pod, container);
        Self {
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            restarts: if restarts_all { Restarts::Always } else { by_exit_code },
            resources: container.resources.as_ref(),
        }
    }
}

// === impl Restarts ===

impl Restarts<'_> {
    /// Whether a container with this exit code may run again.
    fn after(self, exit_code: i32) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::ByExitCode(pod, container) => should_restart(pod, container, exit_code),
        }
    }
}

/// Composes the container statuses from the report.
pub(super) fn compose(
    pod: &Pod,
    there: &PodStatus,
    reported: &PodStatus,
    status: &mut PodStatus,
    refused: &mut Vec<String>,
) {
    let spec = pod.spec.as_ref();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default();
    let terminal = super::is_terminal(reported.phase.as_deref());
    let why = |why| (!terminal).then_some(why);
    let waiting = if init.is_empty() { "ContainerCreating" } else { "PodInitializing" };
    // What a complete report lacks does not exist.
    let known = !super::is_complete(reported);
    let restarts_all = may_restart_all(pod);
    let member = |one| {
        let member = Member::of(pod, one, restarts_all);
        Member { resources: member.resources.filter(|_| known), ..member }
    };
    status.container_statuses = list(
        regular.iter().map(member),
        reported.container_statuses.as_deref(),
        there.container_statuses.as_deref(),
        why(waiting),
        refused,
    );
    status.init_container_statuses = list(
        init.iter().map(member),
        reported.init_container_statuses.as_deref(),
        there.init_container_statuses.as_deref(),
        why("PodInitializing"),
        refused,
    );
    status.ephemeral_container_statuses = list(
        ephemeral.iter().map(|one| Member {
            name: &one.name,
            image: one.image.as_deref().unwrap_or_default(),
            restarts: Restarts::Never,
            resources: None,
        }),
        reported.ephemeral_container_statuses.as_deref(),
        there.ephemeral_container_statuses.as_deref(),
        why("ContainerCreating"),
        refused,
    );
    // As the kubelet sorts them: by name, and init containers in the order of the spec.
    for list in
        [&mut status.container_statuses, &mut status.ephemeral_container_statuses].into_iter().flatten()
    {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

fn list<'a>(
    members: impl Iterator<Item = Member<'a>>,
    said: Option<&[ContainerStatus]>,
    had: Option<&[ContainerStatus]>,
    why: Option<&str>,
    refused: &mut Vec<String>,
) -> Option<Vec<ContainerStatus>> {
    let (said, had) = (said.unwrap_or_default(), had.unwrap_or_default());
    let mut known = Vec::new();
    let statuses: Vec<ContainerStatus> = members
        .filter_map(|member| {
            known.push(member.name);
            let before = had.iter().find(|status| status.name == member.name);
            match said.iter().find(|status| status.name == member.name) {
                Some(status) => Some(one(&member, status.clone(), before, refused)),
                // A pod that failed before it started has no container statuses.
                None => before.cloned().or_else(|| why.map(|why| fill(member.name, member.image, why))),
            }
        })
        .collect();
    for status in said.iter().filter(|status| !known.contains(&status.name.as_str())) {
        refused.push(format!("a status of container {:?}, which the pod does not have", status.name));
    }
    (!statuses.is_empty()).then_some(statuses)
}

fn one(
    member: &Member<'_>,
    mut status: ContainerStatus,
    before: Option<&ContainerStatus>,
    refused: &mut Vec<String>,
) -> ContainerStatus {
    status.state = status.state.map(|state| single(state, member.name, refused));
    status.last_state = status.last_state.map(|state| single(state, member.name, refused));
    if status.image.is_empty() {
        member.image.clone_into(&mut status.image);
    }
    let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
    // The allocated resources are known here, also to the next process; a provider that does not report others has just these.
    if let Some(given) = member.resources.filter(|given| **given != ResourceRequirements::default()) {
        status.allocated_resources.clone_from(&given.requests);
        status.resources = status.resources.or_else(|| runs.then(|| given.clone()));
    }
    let ended_before =
        before.filter(|before| exit_code(before).is_some_and(|code| !member.restarts.after(code)));
    if let (Some(before), false) = (ended_before, is_terminated(&status)) {
        // The API server would refuse the whole write.
        refused.push(format!("container {} running again, which its restart policy forbids", member.name));
        return before.clone();
    }
    status
}

/// Exactly one of the three states. A container that has ended stays ended.
fn single(state: ContainerState, name: &str, refused: &mut Vec<String>) -> ContainerState {
    let count = usize::from(state.running.is_some())
        + usize::from(state.terminated.is_some())
        + usize::from(state.waiting.is_some());
    if count > 1 {
        refused.push(format!("container {name} in {count} states at once"));
    }
    match state {
        ContainerState { terminated: Some(mut ended), .. } => {
            ended.started_at = ended.started_at.as_ref().map(whole);
            ended.finished_at = ended.finished_at.as_ref().map(whole);
            ContainerState { terminated: Some(ended), ..ContainerState::default() }
        }
        ContainerState { running: Some(mut running), .. } => {
            running.started_at = running.started_at.as_ref().map(whole);
            ContainerState { running: Some(running), ..ContainerState::default() }
        }
        other => other,
    }
}

/// Times as the API server stores them: a report with other times would be written again after every restart.
fn whole(time: &Time) -> Time {
    Time(super::whole_seconds(time.0))
}

fn exit_code(status: &ContainerStatus) -> Option<i32> {
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn is_terminated(status: &ContainerStatus) -> bool {
    exit_code(status).is_some()
}

/// The status of a container that was not reported yet.
pub fn fill(name: &str, image: &str, reason: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.to_owned(),
        image: image.to_owned(),
        image_id: String::new(),
        started: Some(false),
        state: Some(ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message: None }),
            ..ContainerState::default()
        }),
        ..ContainerStatus::default()
    }
}

/// Whether the pod is initialized again, in a new sandbox: the only way back that a kubelet knows.
pub(super) fn is_initializing(pod: &Pod, status: &PodStatus) -> bool {
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let goes_on = |name: &str| {
        init.iter().any(|one| one.name == name && one.restart_policy.as_deref() == Some("Always"))
    };
    status.init_container_statuses.iter().flatten().any(|one| {
        let Some(state) = &one.state else { return false };
        let has_started = goes_on(&one.name) && one.started == Some(true);
        (state.running.is_some() && !has_started) || (state.waiting.is_some() && one.last_state.is_none())
    })
}

/// The phase that follows from the containers, for providers that report none.
pub(super) fn phase(pod: &Pod, status: &PodStatus) -> String {
    let all: Vec<&ContainerStatus> = status.container_statuses.iter().flatten().collect();
    let specs = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    // The exit code of a container that will not run again.
    let end = |one: &&ContainerStatus| {
        let code = exit_code(one)?;
        let spec = specs.iter().find(|spec| spec.name == one.name);
        (!spec.is_some_and(|spec| should_restart(pod, spec, code))).then_some(code)
    };
    let ends: Vec<i32> = all.iter().filter_map(end).collect();
    if !all.is_empty() && ends.len() == all.len() {
        let succeeded = ends.iter().all(|code| *code == 0);
        return if succeeded { "Succeeded" } else { "Failed" }.to_owned();
    }
    let has_run = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
    let started = all.iter().any(|one| one.state.as_ref().is_some_and(has_run) || one.restart_count > 0);
    if started { "Running" } else { "Pending" }.to_owned()
}

/// Whether nothing of the pod runs any more, by what the provider reports: each of its containers has ended, or never
/// started and never will because the phase is final; and nothing runs that the provider cannot show as a container.
pub fn all_ended(reported: &PodStatus) -> bool {
    let conditions = reported.conditions.iter().flatten();
    if conditions.filter(|one| one.type_ == STILL_RUNNING).any(|one| one.status == "True") {
        return false;
    }
    let terminal = super::is_terminal(reported.phase.as_deref());
    let lists = [
        &reported.init_container_statuses,
        &reported.container_statuses,
        &reported.ephemeral_container_statuses,
    ];
    let mut statuses = lists.into_iter().flatten().flatten().peekable();
    if statuses.peek().is_none() {
        return terminal;
    }
    statuses.all(|status| {
        let state = status.state.as_ref();
        let runs = state.is_some_and(|state| state.running.is_some());
        !runs && (terminal || state.is_some_and(|state| state.terminated.is_some()))
    })
}

/// The status of a pod that the backend lost: whatever ran has ended in a way that nobody saw, as the kubelet reports it.
pub fn lost(pod: &Pod, message: &str) -> PodStatus {
    let mut status = pod.status.clone().unwrap_or_default();
    status.phase = Some("Failed".to_owned());
    status.reason = Some("NotFound".to_owned());
    status.message = Some(message.to_owned());
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != STILL_RUNNING);
    }
    let lists = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        let state = container.state.take().unwrap_or_default();
        container.ready = false;
        container.started = Some(false);
        container.state = Some(if state.terminated.is_some() {
            state
        } else {
            ContainerState {
                terminated: Some(ContainerStateTerminated {
                    container_id: container.container_id.clone(),
                    exit_code: 137,
                    reason: Some("ContainerStatusUnknown".to_owned()),
                    message: Some("the backend lost the container".to_owned()),
                    started_at: state.running.and_then(|running| running.started_at),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            }
        });
    }
    status
}
