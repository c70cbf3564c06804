//! Pods that are no more below.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::{
    conditions, is_terminal,
    truncate::{MAX_MESSAGE, MAX_REASON, truncate},
    whole,
};

/// Why a pod has failed whose lower pod somebody deleted.
pub const POD_DELETED: &str = "LowerPodDeleted";
/// Why a pod has failed whose lower node was not heard of for too long.
pub const NODE_LOST: &str = "LowerNodeLost";

/// What the provider reports of an upper pod whose lower pod is gone: it has failed for this reason, and whatever ran has ended in a way that
/// nobody saw. `last` is what was reported last, if that is still known. A pod that had ended already ends no other way.
pub fn failed_status(upper: &Pod, last: Option<&PodStatus>, reason: &str, message: &str) -> PodStatus {
    let there = upper.status.as_ref();
    let ended = there.filter(|there| is_terminal(there)).or_else(|| last.filter(|last| is_terminal(last)));
    let none = PodStatus::default();
    // Of a pod that has ended both may tell, and what was told last tells more of its containers.
    let known = last.or(there).unwrap_or(&none);
    let end = |all: &Option<Vec<ContainerStatus>>| {
        let mut all = all.clone()?;
        for one in &mut all {
            end(one, ended.is_some());
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
        // The others follow from the phase, which is the core's to say.
        conditions: conditions::find(Some(known), "DisruptionTarget").map(|one| vec![conditions::copy(one)]),
        container_statuses: end(&known.container_statuses),
        init_container_statuses: end(&known.init_container_statuses),
        ephemeral_container_statuses: end(&known.ephemeral_container_statuses),
        resources: known.resources.clone(),
        allocated_resources: known.allocated_resources.clone(),
        qos_class: whole(known, known.container_statuses.as_deref()),
        ..PodStatus::default()
    }
}

/// What still ran has ended; what never started in a pod that had ended already never will. What has ended stays as it was told: init
/// containers that ended well are ready.
fn end(container: &mut ContainerStatus, was_over: bool) {
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
        // As a kubelet says it of a container that it cannot find.
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("the lower pod is gone".to_owned()),
        started_at: state.running.and_then(|running| running.started_at),
        ..ContainerStateTerminated::default()
    };
    container.state = Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() });
}
