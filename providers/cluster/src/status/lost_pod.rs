//! The status of pods whose lower pod is lost.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::{
    conditions, is_terminal, qos_class,
    truncate::{MAX_MESSAGE, MAX_REASON, truncate},
};

/// The reason if somebody deleted the lower pod.
pub const POD_DELETED: &str = "LowerPodDeleted";
/// The reason if the lower node was unreachable for too long.
pub const NODE_LOST: &str = "LowerNodeLost";

/// The report for an upper pod whose lower pod is gone: it failed for this reason, and its running containers ended in an unknown way.
/// `last` is the last report, if it is known. A pod that had ended before keeps its result.
pub fn failed_status(upper: &Pod, last: Option<&PodStatus>, reason: &str, message: &str) -> PodStatus {
    let there = upper.status.as_ref();
    let ended = there.filter(|there| is_terminal(there)).or_else(|| last.filter(|last| is_terminal(last)));
    let none = PodStatus::default();
    // For a pod that has ended, the last report knows more about its containers.
    let known = last.or(there).unwrap_or(&none);
    let end_all = |all: &Option<Vec<ContainerStatus>>| {
        let mut all = all.clone()?;
        for one in &mut all {
            end_container(one, ended.is_some());
        }
        Some(all)
    };
    PodStatus {
        phase: ended.map_or_else(|| Some("Failed".to_owned()), |ended| ended.phase.clone()),
        reason: ended.map_or_else(|| Some(truncate(reason, MAX_REASON)), |ended| ended.reason.clone()),
        message: ended.map_or_else(|| Some(truncate(message, MAX_MESSAGE)), |ended| ended.message.clone()),
        pod_ip: known.pod_ip.clone(),
        pod_ips: known.pod_ips.clone(),
        start_time: known.start_time.clone(),
        // The core derives the others from the phase.
        conditions: conditions::find(Some(known), "DisruptionTarget").map(|one| vec![conditions::copy(one)]),
        container_statuses: end_all(&known.container_statuses),
        init_container_statuses: end_all(&known.init_container_statuses),
        ephemeral_container_statuses: end_all(&known.ephemeral_container_statuses),
        resources: known.resources.clone(),
        allocated_resources: known.allocated_resources.clone(),
        qos_class: qos_class(known, known.container_statuses.as_deref()),
        ..PodStatus::default()
    }
}

/// Ends a running container. A container that never started in a pod that had already ended stays as it is, and so does one that has
/// ended: init containers that succeeded are ready.
fn end_container(container: &mut ContainerStatus, was_over: bool) {
    let state = container.state.take().unwrap_or_default();
    if state.terminated.is_some() {
        container.state = Some(state);
        return;
    }
    container.ready = false;
    container.started = Some(false);
    if was_over && state.running.is_none() {
        container.state = Some(state);
        return;
    }
    let terminated = ContainerStateTerminated {
        container_id: container.container_id.clone(),
        // What a kubelet reports for a container that it cannot find.
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("the lower pod is gone".to_owned()),
        started_at: state.running.and_then(|running| running.started_at),
        ..ContainerStateTerminated::default()
    };
    container.state = Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() });
}
