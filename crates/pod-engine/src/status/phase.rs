//! The phase that follows from the containers.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

use super::{find, restart::RESTARTING_ALL};
use crate::{decide::should_restart, parts::is_sidecar};

/// How many of the containers are where.
#[derive(Default)]
struct Counts {
    /// Init containers that have not come to their end, sidecars that have not come to their start.
    pending_init: u32,
    pending_sidecars: u32,
    /// Init containers that failed for good.
    failed_init: u32,
    unknown: u32,
    running: u32,
    waiting: u32,
    stopped: u32,
    /// Those among the stopped that are not started again, and those that ended well.
    finished: u32,
    succeeded: u32,
}

/// The phase. `over`: nothing is started again. `begun`: a regular container was begun in the present sandbox, so that a sidecar that is
/// restarted does not make the pod a new one.
pub(super) fn phase(pod: &Pod, status: &PodStatus, over: bool, begun: bool) -> &'static str {
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
    if !over && counts.stopped != counts.finished {
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
        match status.map(standing) {
            Some(Standing::Ended(0) | Standing::Again(0)) => {}
            Some(Standing::Ended(code) | Standing::Again(code))
                if should_restart(pod, container, code) || status.is_some_and(restarts_with_all) => {}
            Some(Standing::Ended(_) | Standing::Again(_)) => counts.failed_init += 1,
            _ => counts.pending_init += 1,
        }
    }
    for container in spec.map(|spec| spec.containers.as_slice()).unwrap_or_default() {
        let status = find(status.container_statuses.as_deref().unwrap_or_default(), &container.name);
        match status.map_or(Standing::Unknown, standing) {
            Standing::Running => counts.running += 1,
            Standing::Waiting => counts.waiting += 1,
            Standing::Unknown => counts.unknown += 1,
            stopped @ (Standing::Ended(code) | Standing::Again(code)) => {
                counts.stopped += 1;
                let again = should_restart(pod, container, code) || status.is_some_and(restarts_with_all);
                counts.finished += u32::from(!again);
                counts.succeeded += u32::from(stopped == Standing::Ended(0));
            }
        }
    }
    counts
}

// === impl Counts ===

impl Counts {
    /// A sidecar that has ended counts for nothing.
    fn sidecar(&mut self, status: Option<&ContainerStatus>) {
        match status.map(standing) {
            None => self.unknown += 1,
            Some(Standing::Running) => {
                self.running += 1;
                self.pending_sidecars += u32::from(status.is_none_or(|status| status.started != Some(true)));
            }
            Some(Standing::Waiting) => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            Some(Standing::Unknown) => {
                self.pending_sidecars += 1;
                self.unknown += 1;
            }
            Some(Standing::Ended(_) | Standing::Again(_)) => {}
        }
    }
}

/// Whether it was ended because the whole pod is restarted.
fn restarts_with_all(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref().filter(|state| state.waiting.is_none()).or(status.last_state.as_ref());
    let ended = state.and_then(|state| state.terminated.as_ref());
    ended.is_some_and(|ended| ended.reason.as_deref() == Some(RESTARTING_ALL))
}

/// Where a container stands, as far as the phase is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Running,
    /// Ended, with this code.
    Ended(i32),
    /// Waiting, and it has ended before with this code.
    Again(i32),
    /// Waiting for the first time.
    Waiting,
    Unknown,
}

fn standing(status: &ContainerStatus) -> Standing {
    let ended = |state: &Option<ContainerState>| Some(state.as_ref()?.terminated.as_ref()?.exit_code);
    match &status.state {
        Some(ContainerState { running: Some(_), .. }) => Standing::Running,
        Some(ContainerState { terminated: Some(ended), .. }) => Standing::Ended(ended.exit_code),
        Some(ContainerState { waiting: Some(_), .. }) => {
            ended(&status.last_state).map_or(Standing::Waiting, Standing::Again)
        }
        _ => Standing::Unknown,
    }
}
