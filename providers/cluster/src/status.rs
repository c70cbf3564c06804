//! The status of an upper pod, from its lower one.
//!
//! What is made here is a provider's report and no more. The core makes it whole: Ready from the readiness gates, addresses of the node, the
//! generation, the start time and the times of conditions; it keeps PodScheduled and what other controllers wrote, and refuses what goes
//! back.
//!
//! What the lower cluster adds to a pod for itself stays there: containers that its webhooks inject, their mounts, conditions of its
//! controllers, addresses of its machines. But what it says of the pod as a whole holds as it says it: the phase, and whether the containers
//! are ready, are the lower pod's even when the container that is the reason is not shown. A pod that does not serve below does not serve,
//! and the message of the condition names the container. And as long as such a container runs the pod has not ended, though all that is shown
//! of it has.
//!
//! Everything from below is somebody else's input: texts are cut, lists are held to what the upper spec has, and nothing is interpreted.

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

/// What the provider reports of an upper pod whose lower pod looks like this, after the lower pod was made anew so many times.
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
        conditions: conditions::passed(lower, there),
        resources: below.resources.clone(),
        allocated_resources: below.allocated_resources.clone(),
        ..PodStatus::default()
    };
    containers::pass(below, upper, replaced, &mut status);
    status.conditions =
        some(status.conditions.take().into_iter().flatten().chain(conditions::unseen(below, upper, &status)));
    status.qos_class = whole(below, below.container_statuses.as_deref());
    status
}

/// The class of service, where the report is a kubelet's.
///
/// The core does not write it, but takes a report that has it as a whole one: it fills in no resources of the upper spec that the report does
/// not have, and believes when the pod is initialised again. Both are right for what a kubelet below says, and only then: resources are what
/// that kubelet has given, also in the middle of a resize. But the API server writes the class when it stores a pod, long before any kubelet
/// has seen it, so the class says nothing by itself: containers do, of which only a kubelet tells. A report without containers, of a pod that
/// waits for a lower node or that a lower kubelet refused, is a part, and the core fills in the rest; taken as a whole one, the core would leave
/// conditions of an earlier lower pod as they are.
fn whole(status: &PodStatus, containers: Option<&[ContainerStatus]>) -> Option<String> {
    status.qos_class.clone().filter(|_| containers.is_some_and(|all| !all.is_empty()))
}

/// The lower pod's phase. Only a lower pod that takes the place of another begins again where the upper pod cannot: that one goes on running,
/// with containers that wait.
fn phase(below: &PodStatus, there: &PodStatus, replaced: i32) -> Option<String> {
    let phase = below.phase.as_deref().filter(|phase| !phase.is_empty())?;
    let began_again = replaced > 0 || containers::is_silent(below);
    let goes_on = phase == "Pending" && there.phase.as_deref() == Some("Running") && began_again;
    Some(if goes_on { "Running" } else { phase }.to_owned())
}

fn some<T>(all: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let all: Vec<T> = all.collect();
    (!all.is_empty()).then_some(all)
}

fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests;
