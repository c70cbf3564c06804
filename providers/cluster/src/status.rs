//! The status of an upper pod, computed from its lower pod.
//!
//! The result is only a provider's report. The core completes it with Ready (from the readiness gates), the addresses of the node, the
//! generation, the start time and the transition times of conditions. It keeps PodScheduled and the conditions of other controllers, and
//! rejects transitions that go backwards.
//!
//! What the lower cluster adds to a pod for itself is not reported: injected containers and their mounts, conditions of its controllers,
//! addresses of its machines. But its statements about the pod as a whole are: the phase and ContainersReady are those of the lower pod,
//! even if the container that causes them is not shown. The message of the condition names the container. While an injected container is
//! running, the pod has not ended, even if all containers that are shown have.
//!
//! Everything from the lower cluster is untrusted input: texts are truncated, lists are limited to what the upper spec has, and nothing is
//! interpreted.

mod conditions;
mod containers;
mod lost_pod;
mod truncate;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use self::truncate::{MAX_MESSAGE, MAX_REASON, truncate_optional};

pub(crate) use self::truncate::truncate;
pub use self::{
    conditions::scheduling,
    lost_pod::{NODE_LOST, POD_DELETED, failed_status},
};

/// The report for an upper pod with this lower pod, which replaced `replaced` earlier ones.
pub fn upper_status(lower: &Pod, upper: &Pod, replaced: i32) -> PodStatus {
    let none = PodStatus::default();
    let below = lower.status.as_ref().unwrap_or(&none);
    let there = upper.status.as_ref().unwrap_or(&none);
    let mut status = PodStatus {
        phase: phase(below, there, replaced),
        reason: truncate_optional(below.reason.as_ref(), MAX_REASON),
        message: truncate_optional(below.message.as_ref(), MAX_MESSAGE),
        pod_ip: below.pod_ip.clone(),
        pod_ips: below.pod_ips.clone(),
        start_time: below.start_time.clone(),
        conditions: conditions::reported(lower, there),
        resources: below.resources.clone(),
        allocated_resources: below.allocated_resources.clone(),
        ..PodStatus::default()
    };
    containers::fill_in(below, upper, replaced, &mut status);
    status.conditions = non_empty(
        status
            .conditions
            .take()
            .into_iter()
            .flatten()
            .chain(conditions::still_running(below, upper, &status)),
    );
    status.qos_class = qos_class(below, below.container_statuses.as_deref());
    status
}

/// The QoS class, if the report comes from a kubelet.
///
/// The core does not write it, but treats a report that has it as complete: it does not fill in resources of the upper spec, and accepts
/// that the pod is initialised again. Both are only right for reports of a lower kubelet, whose resources are the actual ones, also during
/// a resize. The API server sets the class when it stores a pod, long before a kubelet sees it, so the class alone proves nothing.
/// Container statuses do, because only a kubelet writes them. A report without them, of a pod that is not scheduled or that a lower
/// kubelet rejected, is partial, and the core fills in the rest. If the core took it as complete, conditions of an earlier lower pod would
/// stay.
fn qos_class(status: &PodStatus, containers: Option<&[ContainerStatus]>) -> Option<String> {
    status.qos_class.clone().filter(|_| containers.is_some_and(|all| !all.is_empty()))
}

/// The phase of the lower pod. A replacement pod starts as Pending, which the upper pod cannot go back to: it stays Running with waiting
/// containers.
fn phase(below: &PodStatus, there: &PodStatus, replaced: i32) -> Option<String> {
    let phase = below.phase.as_deref().filter(|phase| !phase.is_empty())?;
    let began_again = replaced > 0 || containers::has_no_statuses(below);
    let goes_on = phase == "Pending" && there.phase.as_deref() == Some("Running") && began_again;
    Some(if goes_on { "Running" } else { phase }.to_owned())
}

fn non_empty<T>(all: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let all: Vec<T> = all.collect();
    (!all.is_empty()).then_some(all)
}

pub(crate) use vk_provider::pod::is_terminal as has_ended;

/// Whether a pod has ended, or had containers of which none can run any more.
pub(crate) fn has_stopped(pod: &Pod) -> bool {
    let containers = pod.status.iter().filter_map(|status| status.container_statuses.as_ref()).flatten();
    let mut states = containers.map(|container| container.state.as_ref()).peekable();
    let is_over =
        states.peek().is_some() && states.all(|state| state.is_some_and(|state| state.terminated.is_some()));
    is_over || has_ended(pod)
}

pub(crate) fn is_terminal(status: &PodStatus) -> bool {
    vk_provider::pod::is_terminal_phase(status.phase.as_deref())
}

#[cfg(test)]
mod tests;
