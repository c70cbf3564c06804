//! Progress of init containers, and actions for sidecars.

use k8s_openapi::api::core::v1::Container as Spec;

use vk_provider::{requests::is_sidecar, restart_policy::should_restart};

use super::{PlanInput, StopContainer, StopReason, container_actions, restart};
use crate::{
    probe::result::{ProbeKind, ProbeResult},
    snapshot::{Container, ContainerState},
};

/// The state of initialization and the resulting actions.
pub(super) struct InitProgress {
    /// Whether regular containers may start.
    pub(super) initialized: bool,
    /// Indexes of init containers to start, in the order of the spec.
    pub(super) start: Vec<usize>,
    /// Containers to stop first.
    pub(super) stop: Vec<StopContainer>,
}

/// Computes the progress of init containers. `None` if initialization has failed permanently.
///
/// It goes from the last container to the first: records of completed init containers may be gone, so the last record determines the
/// progress. Everything before it is completed, and only sidecars among those need actions.
pub(super) fn init_progress(input: &PlanInput<'_>, sandbox: &str) -> Option<InitProgress> {
    let PlanInput { pod, snapshot, .. } = *input;
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let mut progress = InitProgress { initialized: inits.is_empty(), start: Vec::new(), stop: Vec::new() };
    if inits.is_empty() {
        return Some(progress);
    }
    let here = |name: &str| snapshot.newest(name).filter(|container| container.sandbox == sandbox);
    // An existing regular container proves it, even without records of init containers. One that has exited proves nothing, as in
    // a kubelet: sidecars that exited with it are started first again.
    progress.initialized =
        spec.map(|spec| spec.containers.as_slice()).unwrap_or_default().iter().any(|regular| {
            here(&regular.name).is_some_and(|record| {
                matches!(record.state, ContainerState::Created | ContainerState::Running)
            })
        });
    let mut reached = progress.initialized;
    for (index, container) in inits.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let last = index + 1 == inits.len();
        let Some(record) = here(&container.name) else {
            if reached && sidecar {
                progress.start.push(index);
            }
            continue;
        };
        if reached && !sidecar {
            continue;
        }
        match record.state {
            // Creation and start are one step: the runtime failed to start this one.
            ContainerState::Created => progress.start.push(index),
            ContainerState::Running if sidecar => {
                progress.running_sidecar(input, container, record, index, last, reached);
            }
            ContainerState::Running => {}
            ContainerState::Exited if sidecar => progress.start.push(index),
            ContainerState::Exited if has_failed(record) => {
                if !should_restart(pod, container, record.exit_code) {
                    return None;
                }
                progress.start.push(index);
            }
            ContainerState::Exited if last => progress.initialized = true,
            ContainerState::Exited => progress.start.push(index + 1),
            ContainerState::Unknown => {
                if !sidecar && !restart::restarts_after_stop(pod, container) {
                    return None;
                }
                let message = r#"Init container is in "unknown" state, try killing it before restart"#;
                progress.restart(record, index, message.to_owned(), StopReason::Unknown);
            }
        }
        reached = true;
    }
    if !reached {
        progress.start.push(0);
    }
    progress.start.reverse();
    Some(progress)
}

/// Whether an init container has failed.
fn has_failed(record: &Container) -> bool {
    record.reason == "OOMKilled" || record.exit_code != 0
}

// === impl InitProgress ===

impl InitProgress {
    fn running_sidecar(
        &mut self,
        input: &PlanInput<'_>,
        container: &Spec,
        record: &Container,
        index: usize,
        last: bool,
        reached: bool,
    ) {
        let name = &container.name;
        if container.startup_probe.is_some() {
            match input.probe_results.get(&record.id, ProbeKind::Startup) {
                Some(ProbeResult::Success) => {}
                Some(ProbeResult::Failure) => {
                    let message = format!("Init container {name} failed startup probe");
                    return self.restart(record, index, message, StopReason::Startup);
                }
                Some(ProbeResult::Unknown) | None => return,
            }
        }
        if last {
            self.initialized = true;
        } else if !reached {
            self.start.push(index + 1);
        }
        if container_actions::has_changed(container, record) {
            self.restart(
                record,
                index,
                format!("Init container {name} definition changed"),
                StopReason::Changed,
            );
        } else if container.liveness_probe.is_some()
            && input.probe_results.get(&record.id, ProbeKind::Liveness) == Some(ProbeResult::Failure)
        {
            self.restart(
                record,
                index,
                format!("Init container {name} failed liveness probe"),
                StopReason::Liveness,
            );
        }
    }

    fn restart(&mut self, record: &Container, index: usize, message: String, reason: StopReason) {
        self.stop.push(StopContainer { id: record.id.clone(), name: record.name.clone(), message, reason });
        self.start.push(index);
    }
}
