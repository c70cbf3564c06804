//! Builds the status of a simulated pod, as a kubelet would.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use vk_provider::node::ConditionStatus;

use super::{
    container::{ContainerSpec, Ended, Role, SimulatedContainer, State},
    pod::{Failure, Phase, SimulatedPod},
};

/// The current status of a pod.
pub(super) fn of(entry: &SimulatedPod) -> PodStatus {
    let phase = entry.phase();
    let specs = &entry.outline.containers;
    let count = |role: Role| specs.iter().filter(|spec| spec.role == role).count();
    let inits = count(Role::Init) + count(Role::Sidecar);
    let has_init = inits > 0;
    // With exact capacity: a status is kept as long as its pod.
    let mut init = Vec::with_capacity(inits);
    let mut regular = Vec::with_capacity(count(Role::Regular));
    let mut ephemeral = Vec::with_capacity(count(Role::Ephemeral));
    for (spec, container) in specs.iter().zip(&entry.containers) {
        let status = container_status(entry, spec, container, has_init);
        match spec.role {
            Role::Init | Role::Sidecar => init.push(status),
            Role::Regular => regular.push(status),
            Role::Ephemeral => ephemeral.push(status),
        }
    }
    let host_ip = entry.host_ip.to_string();
    let started = entry.containers.iter().any(SimulatedContainer::has_started);
    let pod_ip = started.then(|| entry.address.map_or_else(|| host_ip.clone(), |(_, own)| own.to_string()));
    let (reason, message) = match entry.failed {
        Some(Failure::DeadlineExceeded) => (
            Some("DeadlineExceeded".to_owned()),
            Some("Pod was active on the node longer than the specified deadline".to_owned()),
        ),
        None => (None, None),
    };
    PodStatus {
        phase: Some(phase.as_str().to_owned()),
        reason,
        message,
        conditions: Some(vec![initialized(entry, phase), containers_ready(entry, phase)]),
        start_time: Some(time(entry.created)),
        host_ips: Some(vec![HostIP { ip: host_ip.clone() }]),
        host_ip: Some(host_ip),
        pod_ips: pod_ip.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip,
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: Some(regular),
        ephemeral_container_statuses: (!ephemeral.is_empty()).then_some(ephemeral),
        ..PodStatus::default()
    }
}

fn container_status(
    entry: &SimulatedPod,
    spec: &ContainerSpec,
    container: &SimulatedContainer,
    has_init: bool,
) -> ContainerStatus {
    let id = |restarts: i32| format!("mock://{}.{}.{restarts}", entry.reference.uid, spec.name);
    let state = match container.state {
        State::Waiting { .. } => ContainerState {
            waiting: Some(waiting(entry, spec, container, has_init)),
            ..ContainerState::default()
        },
        State::Running { since, .. } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(time(since)) }),
            ..ContainerState::default()
        },
        State::Ended(ended) => terminated(entry, &ended, id(container.restarts)),
    };
    // While it waits for a restart, the count is still that of the ended instance.
    let previous = if container.is_running() { container.restarts - 1 } else { container.restarts };
    let started = container.is_running();
    ContainerStatus {
        name: spec.name.to_string(),
        image: spec.image.to_string(),
        image_id: image_id(&spec.image),
        container_id: container.has_started().then(|| id(container.restarts)),
        state: Some(state),
        last_state: container.last.map(|last| terminated(entry, &last, id(previous.max(0)))),
        ready: match spec.role {
            Role::Init => container.ended().is_some_and(|ended| ended.code == 0),
            _ => container.is_ready(),
        },
        started: Some(started),
        restart_count: container.restarts,
        resources: spec.resources.as_deref().filter(|_| started).cloned(),
        allocated_resources: spec.resources.as_ref().and_then(|resources| resources.requests.clone()),
        ..ContainerStatus::default()
    }
}

fn waiting(
    entry: &SimulatedPod,
    spec: &ContainerSpec,
    container: &SimulatedContainer,
    has_init: bool,
) -> ContainerStateWaiting {
    let (reason, message) = match container.last {
        Some(last) => {
            let (name, pod) = (&spec.name, &entry.reference.name);
            let message =
                format!("back-off restarting container={name} pod={pod} after exit code {}", last.code);
            ("CrashLoopBackOff", Some(message))
        }
        None if has_init && spec.role != Role::Ephemeral => ("PodInitializing", None),
        None => ("ContainerCreating", None),
    };
    ContainerStateWaiting { reason: Some(reason.to_owned()), message }
}

fn terminated(entry: &SimulatedPod, ended: &Ended, id: String) -> ContainerState {
    let (reason, message) = match (ended.started, entry.failed) {
        // The kubelet's text for a container that was never seen.
        (None, _) => (
            "ContainerStatusUnknown",
            Some("The container could not be located when the pod was terminated".to_owned()),
        ),
        (Some(_), Some(Failure::DeadlineExceeded)) if ended.code == 137 => ("DeadlineExceeded", None),
        _ if ended.code == 0 => ("Completed", None),
        _ => ("Error", None),
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: ended.started.map(|_| id),
            exit_code: ended.code,
            started_at: ended.started.map(time),
            finished_at: Some(time(ended.at)),
            reason: Some(reason.to_owned()),
            message,
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn initialized(entry: &SimulatedPod, phase: Phase) -> PodCondition {
    if let Some(since) = entry.initialized {
        return condition("Initialized", ConditionStatus::True, since, done(phase), None);
    }
    let missing = names(entry, |spec, container| {
        spec.role == Role::Init && container.ended().is_none_or(|ended| ended.code != 0)
    });
    let message = format!("containers with incomplete status: [{missing}]");
    let reason = Some("ContainersNotInitialized");
    condition("Initialized", ConditionStatus::False, entry.created, reason, Some(message))
}

fn containers_ready(entry: &SimulatedPod, phase: Phase) -> PodCondition {
    let (ready, since) = entry.ready;
    if ready {
        return condition("ContainersReady", ConditionStatus::True, since, None, None);
    }
    if phase == Phase::Succeeded {
        return condition("ContainersReady", ConditionStatus::False, since, done(phase), None);
    }
    let missing = names(entry, |spec, container| {
        matches!(spec.role, Role::Regular | Role::Sidecar) && !container.is_ready()
    });
    let message = format!("containers with unready status: [{missing}]");
    condition("ContainersReady", ConditionStatus::False, since, Some("ContainersNotReady"), Some(message))
}

fn done(phase: Phase) -> Option<&'static str> {
    (phase == Phase::Succeeded).then_some("PodCompleted")
}

fn condition(
    kind: &str,
    status: ConditionStatus,
    since: Timestamp,
    reason: Option<&str>,
    message: Option<String>,
) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.map(str::to_owned),
        message,
        last_transition_time: Some(time(since)),
        ..PodCondition::default()
    }
}

/// Truncated to seconds, as in the Kubernetes API, so that a status does not change when it is stored.
fn time(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

fn names(entry: &SimulatedPod, wanted: impl Fn(&ContainerSpec, &SimulatedContainer) -> bool) -> String {
    let mut names = String::new();
    for (spec, _) in
        entry.outline.containers.iter().zip(&entry.containers).filter(|(spec, c)| wanted(spec, c))
    {
        if !names.is_empty() {
            names.push(' ');
        }
        names.push_str(&spec.name);
    }
    names
}

/// A fake digest that is the same for the same image.
fn image_id(image: &str) -> String {
    let name = match image.rsplit_once('/') {
        Some((path, last)) => {
            let last = last.split([':', '@']).next().unwrap_or(last);
            format!("{path}/{last}")
        }
        None => image.split([':', '@']).next().unwrap_or(image).to_owned(),
    };
    let digest = crate::fnv(image.as_bytes());
    format!("{name}@sha256:{digest:016x}{digest:016x}{digest:016x}{digest:016x}")
}
