//! Faults in what is reported.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ContainerStateRunning, ContainerStateWaiting, ContainerStatus, Pod, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use vk_provider::{PodChange, PodRef};
use vk_testing::conformance::LOGIN;

use super::{
    broken::{Bender, Broken, Memory},
    fault::Fault,
};

/// A status without containers.
pub(super) fn pending() -> PodStatus {
    PodStatus { phase: Some("Pending".into()), ..PodStatus::default() }
}

/// Whether a pod has no containers.
pub(super) fn is_refusable(pod: &Pod) -> bool {
    pod.spec.as_ref().is_none_or(|spec| spec.containers.is_empty())
}

/// Whether every container has ended.
pub(super) fn is_over(status: &PodStatus) -> bool {
    status
        .container_statuses
        .iter()
        .flatten()
        .all(|container| container.state.as_ref().is_some_and(|state| state.terminated.is_some()))
}

fn containers(status: &mut PodStatus) -> impl Iterator<Item = &mut ContainerStatus> {
    let PodStatus { init_container_statuses, container_statuses, .. } = status;
    init_container_statuses.iter_mut().chain(container_statuses).flatten()
}

impl Broken {
    /// Makes the status wrong, where that is the fault.
    pub(super) fn bend(&self, pod: &PodRef, status: &mut PodStatus) {
        bend(self.fault, &self.memory.lock().unwrap(), pod, status);
    }

    /// Shows a pod running that is over, where that is the fault.
    pub(super) fn revive(&self, pod: &PodRef, status: &mut PodStatus) {
        let revived = self.memory.lock().unwrap().revived.contains(&pod.uid);
        if self.fault == Fault::BringsBackTheDeleted && revived {
            status.phase = Some("Running".into());
            for container in containers(status) {
                let state = container.state.get_or_insert_default();
                state.terminated = None;
                state.running = Some(ContainerStateRunning::default());
            }
        }
    }

    /// What becomes of a change on its way out.
    pub(super) fn bender(&self) -> Bender {
        let (fault, memory) = (self.fault, Arc::clone(&self.memory));
        Box::new(move |change| {
            let PodChange::Status(pod, mut status) = change else {
                return (fault != Fault::PushesNoEnds).then_some(change);
            };
            match fault {
                Fault::PushesNoStarts if status.phase.as_deref() == Some("Running") => return None,
                Fault::PushesNoEnds if is_over(&status) => return None,
                Fault::PushesOtherCounts => {
                    containers(&mut status).for_each(|container| container.restart_count += 7);
                }
                _ => {}
            }
            bend(fault, &memory.lock().unwrap(), &pod, &mut status);
            Some(PodChange::Status(pod, status))
        })
    }
}

fn bend(fault: Fault, memory: &Memory, pod: &PodRef, status: &mut PodStatus) {
    match fault {
        Fault::LeavesOutAContainer => {
            status.container_statuses.iter_mut().for_each(|list| list.truncate(1));
        }
        Fault::AddsAContainer => {
            if let Some(list) = &mut status.container_statuses {
                let first = list[0].clone();
                let container_id = Some(format!("mock://pause-{}", pod.uid));
                list.push(ContainerStatus { name: "pause".into(), container_id, ..first });
            }
        }
        Fault::IsInTwoStates => {
            for container in containers(status) {
                let state = container.state.get_or_insert_default();
                if state.running.is_some() {
                    state.waiting = Some(ContainerStateWaiting::default());
                }
            }
        }
        Fault::GoesBackToPending if memory.deleted.contains(&pod.uid) => {
            status.phase = Some("Pending".into());
        }
        Fault::GivesOneIdToAll => {
            for container in containers(status) {
                container.container_id =
                    container.container_id.is_some().then(|| format!("mock://{}", pod.uid));
            }
        }
        Fault::DoesNotSaySince => {
            for container in containers(status) {
                if let Some(running) = container.state.as_mut().and_then(|state| state.running.as_mut()) {
                    running.started_at = None;
                }
            }
        }
        Fault::ReportsNoAddress => {
            status.pod_ip = Some("not yet".into());
            status.pod_ips = Some(vec![PodIP { ip: "not yet".into() }]);
        }
        Fault::ShowsSecrets => status.message = Some(format!("logged in with {}", LOGIN.2)),
        Fault::LeavesOutContainersReady => status.conditions = None,
        Fault::IsAlwaysReady => {
            for condition in status.conditions.iter_mut().flatten() {
                condition.status = "True".into();
            }
        }
        Fault::EndsBeforeTheStart => {
            for container in containers(status) {
                if let Some(ended) = container.state.as_mut().and_then(|state| state.terminated.as_mut()) {
                    ended.finished_at =
                        ended.started_at.as_ref().map(|time| Time(time.0 - Duration::from_secs(9)));
                }
            }
        }
        Fault::CallsEveryCodeOne => {
            for container in containers(status) {
                if let Some(ended) = container.state.as_mut().and_then(|state| state.terminated.as_mut()) {
                    ended.exit_code = ended.exit_code.min(1);
                }
            }
        }
        Fault::CallsFailureSuccess if status.phase.as_deref() == Some("Failed") => {
            status.phase = Some("Succeeded".into());
        }
        Fault::CallsSuccessFailure if status.phase.as_deref() == Some("Succeeded") => {
            status.phase = Some("Failed".into());
        }
        Fault::LosesTheCount => {
            for container in containers(status).filter(|container| container.restart_count > 1) {
                container.restart_count = 0;
            }
        }
        _ => {}
    }
}
