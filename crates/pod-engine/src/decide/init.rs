//! How far initialisation has come, and what sidecars need.

use k8s_openapi::api::core::v1::Container as Spec;

use super::{Situation, Stop, Why, restart, work};
use crate::{
    parts::is_sidecar,
    probe::verdict::{Kind, Verdict},
    snapshot::{Container, ContainerState},
};

/// What a walk over the init containers has found.
pub(super) struct Walk {
    /// Whether regular containers may start.
    pub(super) initialized: bool,
    /// What to start, by its place in the spec, in the order of the spec.
    pub(super) start: Vec<usize>,
    /// What to stop before.
    pub(super) stop: Vec<Stop>,
}

/// Goes over the init containers, or says that initialisation has failed for good.
///
/// From the last to the first: records of init containers that are done may be gone, so the last record tells where we are. What is
/// before it is done; of that, only sidecars are looked after.
pub(super) fn walk(situation: &Situation<'_>, sandbox: &str) -> Option<Walk> {
    let Situation { pod, snapshot, .. } = *situation;
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let mut walk = Walk { initialized: inits.is_empty(), start: Vec::new(), stop: Vec::new() };
    if inits.is_empty() {
        return Some(walk);
    }
    let here = |name: &str| snapshot.newest(name).filter(|container| container.sandbox == sandbox);
    // A regular container that is there proves it, even if no init container has left a record. One that has ended proves nothing,
    // as with a kubelet: sidecars that ended with it come first again.
    walk.initialized =
        spec.map(|spec| spec.containers.as_slice()).unwrap_or_default().iter().any(|regular| {
            here(&regular.name).is_some_and(|record| {
                matches!(record.state, ContainerState::Created | ContainerState::Running)
            })
        });
    let mut reached = walk.initialized;
    for (index, container) in inits.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let last = index + 1 == inits.len();
        let Some(record) = here(&container.name) else {
            if reached && sidecar {
                walk.start.push(index);
            }
            continue;
        };
        if reached && !sidecar {
            continue;
        }
        match record.state {
            // Made and started is one step: what is only made was not started by the runtime.
            ContainerState::Created => walk.start.push(index),
            ContainerState::Running if sidecar => {
                walk.running_sidecar(situation, container, record, index, last, reached);
            }
            ContainerState::Running => {}
            ContainerState::Exited if sidecar => walk.start.push(index),
            ContainerState::Exited if has_failed(record) => {
                if !restart::should_restart(pod, container, record.exit_code) {
                    return None;
                }
                walk.start.push(index);
            }
            ContainerState::Exited if last => walk.initialized = true,
            ContainerState::Exited => walk.start.push(index + 1),
            ContainerState::Unknown => {
                if !sidecar && !restart::after_stop(pod, container) {
                    return None;
                }
                let message = r#"Init container is in "unknown" state, try killing it before restart"#;
                walk.restart(record, index, message.to_owned(), Why::Unknown);
            }
        }
        reached = true;
    }
    if !reached {
        walk.start.push(0);
    }
    walk.start.reverse();
    Some(walk)
}

/// Whether an init container has ended badly.
fn has_failed(record: &Container) -> bool {
    record.reason == "OOMKilled" || record.exit_code != 0
}

// === impl Walk ===

impl Walk {
    fn running_sidecar(
        &mut self,
        situation: &Situation<'_>,
        container: &Spec,
        record: &Container,
        index: usize,
        last: bool,
        reached: bool,
    ) {
        let name = &container.name;
        if container.startup_probe.is_some() {
            match situation.verdicts.get(&record.id, Kind::Startup) {
                Some(Verdict::Success) => {}
                Some(Verdict::Failure) => {
                    let message = format!("Init container {name} failed startup probe");
                    return self.restart(record, index, message, Why::Startup);
                }
                Some(Verdict::Unknown) | None => return,
            }
        }
        if last {
            self.initialized = true;
        } else if !reached {
            self.start.push(index + 1);
        }
        if work::has_changed(container, record) {
            self.restart(record, index, format!("Init container {name} definition changed"), Why::Changed);
        } else if container.liveness_probe.is_some()
            && situation.verdicts.get(&record.id, Kind::Liveness) == Some(Verdict::Failure)
        {
            self.restart(
                record,
                index,
                format!("Init container {name} failed liveness probe"),
                Why::Liveness,
            );
        }
    }

    fn restart(&mut self, record: &Container, index: usize, message: String, why: Why) {
        self.stop.push(Stop { id: record.id.clone(), name: record.name.clone(), message, why });
        self.start.push(index);
    }
}
