//! The pod phase, derived from the container statuses.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

use vk_provider::{requests::is_sidecar, restart_policy::should_restart};

use super::{find, pod_restart::RESTARTING_ALL};

/// Numbers of containers by state.
#[derive(Default)]
struct Counts {
    /// Init containers that have not completed, and sidecars that have not started.
    pending_init: u32,
    pending_sidecars: u32,
    /// Init containers that failed permanently.
    failed_init: u32,
    unknown: u32,
    running: u32,
    waiting: u32,
    stopped: u32,
    /// Stopped containers that are not restarted, and those that succeeded.
    finished: u32,
    succeeded: u32,
}

/// The phase. `terminated`: nothing is restarted. `begun`: a regular container was created in the current sandbox, so a restarting sidecar
/// does not make the pod Pending again.
pub(super) fn phase(pod: &Pod, status: &PodStatus, terminated: bool, begun: bool) -> &'static str {
    let counts = count(pod, status);
    if counts.failed_init > 0 {
        return "Failed";
    }
    let initializes = counts.pending_init > 0 || (counts.pending_sidecars > 0 && !begun);
    if initializes || counts.waiting > 0 || counts.unknown > 0 {
        return "Pending";
    }
    if counts.running > 0 {
        return "Running";
    }
    if counts.stopped == 0 {
        return "Pending";
    }
    if !terminated && counts.stopped != counts.finished {
        return "Running";
    }
    if counts.stopped == counts.succeeded { "Succeeded" } else { "Failed" }
}

fn count(pod: &Pod, status: &PodStatus) -> Counts {
    let mut counts = Counts::default();
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    for container in inits {
        let status = find(status.init_container_statuses.as_deref().unwrap_or_default(), &container.name);
        if is_sidecar(container) {
            counts.sidecar(status);
            continue;
        }
        match status.map(container_phase) {
            Some(ContainerPhase::Terminated(0) | ContainerPhase::Restarting(0)) => {}
            Some(ContainerPhase::Terminated(code) | ContainerPhase::Restarting(code))
                if should_restart(pod, container, code) || status.is_some_and(restarts_with_all) => {}
            Some(ContainerPhase::Terminated(_) | ContainerPhase::Restarting(_)) => counts.failed_init += 1,
            _ => counts.pending_init += 1,
        }
    }
    for container in spec.map(|spec| spec.containers.as_slice()).unwrap_or_default() {
        let status = find(status.container_statuses.as_deref().unwrap_or_default(), &container.name);
        match status.map_or(ContainerPhase::Unknown, container_phase) {
            ContainerPhase::Running => counts.running += 1,
            ContainerPhase::Waiting => counts.waiting += 1,
            ContainerPhase::Unknown => counts.unknown += 1,
            stopped @ (ContainerPhase::Terminated(code) | ContainerPhase::Restarting(code)) => {
                counts.stopped += 1;
                let again = should_restart(pod, container, code) || status.is_some_and(restarts_with_all);
                counts.finished += u32::from(!again);
                counts.succeeded += u32::from(stopped == ContainerPhase::Terminated(0));
            }
        }
    }
    counts
}

// === impl Counts ===

impl Counts {
    /// A terminated sidecar is not counted.
    fn sidecar(&mut self, status: Option<&ContainerStatus>) {
        match status.map(container_phase) {
            None => self.unknown += 1,
            Some(ContainerPhase::Running) => {
                self.running += 1;
                self.pending_sidecars += u32::from(status.is_none_or(|status| status.started != Some(true)));
            }
            Some(ContainerPhase::Waiting) => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            Some(ContainerPhase::Unknown) => {
                self.pending_sidecars += 1;
                self.unknown += 1;
            }
            Some(ContainerPhase::Terminated(_) | ContainerPhase::Restarting(_)) => {}
        }
    }
}

/// Whether it was stopped because all containers are restarted.
fn restarts_with_all(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref().filter(|state| state.waiting.is_none()).or(status.last_state.as_ref());
    let ended = state.and_then(|state| state.terminated.as_ref());
    ended.is_some_and(|ended| ended.reason.as_deref() == Some(RESTARTING_ALL))
}

/// The state of a container, as far as the pod phase depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ContainerPhase {
    Running,
    /// Terminated, with this exit code.
    Terminated(i32),
    /// Waiting for a restart after it terminated with this exit code.
    Restarting(i32),
    /// Waiting for its first start.
    Waiting,
    Unknown,
}

fn container_phase(status: &ContainerStatus) -> ContainerPhase {
    let ended = |state: &Option<ContainerState>| Some(state.as_ref()?.terminated.as_ref()?.exit_code);
    match &status.state {
        Some(ContainerState { running: Some(_), .. }) => ContainerPhase::Running,
        Some(ContainerState { terminated: Some(ended), .. }) => ContainerPhase::Terminated(ended.exit_code),
        Some(ContainerState { waiting: Some(_), .. }) => {
            ended(&status.last_state).map_or(ContainerPhase::Waiting, ContainerPhase::Restarting)
        }
        _ => ContainerPhase::Unknown,
    }
}
