//! The status of a pod as a kubelet writes it, from what the cloud says about its group. Pure.

mod conditions;
mod containers;

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use vk_provider::{pod::is_terminal_phase, qos};

pub(crate) use self::conditions::PREEMPTED;
use crate::backend::{GroupState, Observed};

/// The input of [`pod_status`].
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The pod, with the API server's status; `None` for a pod that the core has not spoken of.
    pub pod: Option<&'a Pod>,
    /// What is known of its group; `None` before there is one.
    pub observed: Option<&'a Observed>,
    /// The status that was reported last; `None` takes the API server's.
    pub previous: Option<&'a PodStatus>,
    /// The newest warning of the cloud about the pod.
    pub warning: Option<&'a str>,
    /// Whether the group is getting other resources.
    pub is_resizing: bool,
    /// The node's addresses, primary first.
    pub node_ips: &'a [IpAddr],
    /// What container ids begin with: `eci` gives `eci://...`.
    pub runtime: &'a str,
    /// The current time.
    pub now: Timestamp,
}

/// Computes the status of a pod.
pub fn pod_status(input: &StatusInput<'_>) -> PodStatus {
    let nothing = PodStatus::default();
    let old = input.previous.or_else(|| input.pod?.status.as_ref()).unwrap_or(&nothing);
    let mut status = PodStatus {
        qos_class: input.pod.map(|pod| qos::qos(pod).as_str().to_owned()),
        start_time: old.start_time.clone().or_else(|| {
            let created = input.observed.and_then(|observed| observed.created).unwrap_or(input.now);
            Some(whole_seconds(created))
        }),
        observed_generation: input.pod.and_then(|pod| pod.metadata.generation).max(old.observed_generation),
        ..PodStatus::default()
    };
    containers::compose(input, old, &mut status);
    addresses(input, old, &mut status);
    let phase = phase(input, old, &status);
    explain(input, old, phase, &mut status);
    status.phase = Some(phase.to_owned());
    conditions::compose(input, old, &mut status);
    status
}

/// The phase. A final phase stays, and a pod that has run is not Pending again.
fn phase(input: &StatusInput<'_>, old: &PodStatus, status: &PodStatus) -> &'static str {
    match old.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let ran = old.phase.as_deref() == Some("Running");
    let state = input.observed.and_then(|observed| observed.state);
    let before = if ran { "Running" } else { "Pending" };
    match state {
        Some(GroupState::Succeeded) => "Succeeded",
        Some(GroupState::Failed) => "Failed",
        Some(GroupState::Ended | GroupState::Deleted) => {
            let regular = status.container_statuses.as_deref().unwrap_or_default();
            let succeeded = |one: &ContainerStatus| containers::exit_code(one) == Some(0);
            if !regular.is_empty() && regular.iter().all(succeeded) { "Succeeded" } else { "Failed" }
        }
        Some(GroupState::Running) => {
            let unstarted = status.container_statuses.iter().flatten().any(containers::has_never_run);
            if unstarted { before } else { "Running" }
        }
        Some(GroupState::Accepted | GroupState::Provisioning | GroupState::Deleting) | None => before,
    }
}

/// Says why a pod waits or has failed.
fn explain(input: &StatusInput<'_>, old: &PodStatus, phase: &str, status: &mut PodStatus) {
    let observed = input.observed;
    let message = || {
        let said = observed.and_then(|observed| observed.message.clone());
        said.or_else(|| input.warning.map(str::to_owned))
    };
    let same_phase = old.phase.as_deref() == Some(phase);
    match phase {
        "Failed" => {
            let reason = observed.and_then(|observed| {
                let preempted = observed.preempted.then(|| PREEMPTED.to_owned());
                observed.reason.clone().or(preempted)
            });
            // What was said first stays.
            let before = Some(old).filter(|_| same_phase);
            status.reason = before.and_then(|old| old.reason.clone()).or(reason);
            status.message = before.and_then(|old| old.message.clone()).or_else(message);
        }
        "Pending" => status.message = message(),
        _ => {}
    }
}

/// Sets the addresses of the pod and its node. A pod keeps its addresses while the cloud says nothing about them.
fn addresses(input: &StatusInput<'_>, old: &PodStatus, status: &mut PodStatus) {
    let told = input.observed.and_then(|observed| observed.addresses.as_deref());
    let ips: Vec<String> = match told {
        Some(ips) if !ips.is_empty() => one_of_each_family(ips),
        _ => old.pod_ips.iter().flatten().map(|known| known.ip.clone()).collect(),
    };
    let nodes = one_of_each_family(input.node_ips);
    status.host_ip = nodes.first().cloned();
    status.host_ips = (!nodes.is_empty()).then(|| nodes.into_iter().map(|ip| HostIP { ip }).collect());
    status.pod_ip = ips.first().cloned();
    status.pod_ips = (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect());
}

/// The API server accepts at most one address of each family.
fn one_of_each_family(ips: &[IpAddr]) -> Vec<String> {
    let Some(first) = ips.first() else { return Vec::new() };
    let other = ips.iter().find(|ip| ip.is_ipv6() != first.is_ipv6());
    [Some(first), other].into_iter().flatten().map(ToString::to_string).collect()
}

/// The time in whole seconds, as Kubernetes stores it.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// Whether the group has ended, so that nothing of the pod runs.
fn has_ended(input: &StatusInput<'_>) -> bool {
    input.observed.and_then(|observed| observed.state).is_some_and(GroupState::has_ended)
}

fn is_final(status: &PodStatus) -> bool {
    is_terminal_phase(status.phase.as_deref())
}

fn condition(kind: &str, holds: bool) -> PodCondition {
    let status = if holds { "True" } else { "False" };
    PodCondition { type_: kind.to_owned(), status: status.to_owned(), ..PodCondition::default() }
}

#[cfg(test)]
mod tests;
