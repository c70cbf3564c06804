//! The pod status as a kubelet writes it. Pure.
//!
//! There are three steps, as in the kubelet: [`compute_status`] computes the current status, [`terminated_status`] completes it when nothing
//! of the pod runs any more, and [`reported_status`] decides what is reported: a pod is not reported as finished while something of it may
//! run.

mod conditions;
mod containers;
mod phase;
mod pod_restart;
mod readiness;
mod report;
mod resources;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, HostIP, Pod, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

pub use self::report::{reported_status, terminated_status};
use crate::{
    probe::ProbeResults,
    snapshot::{Sandbox, SandboxState, Snapshot},
    spec::qos,
};

/// Why containers wait, by name: the failure of the last start. Removed by the next successful start.
pub type FailureReasons = BTreeMap<String, FailureReason>;

/// A reason and message of a status: why a container waits, or why a pod failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureReason {
    /// The kubelet's reason: `ErrImagePull`, `CrashLoopBackOff`, `RunContainerError`, ...
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

/// The input of [`compute_status`].
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The pod, with the API server's status.
    pub pod: &'a Pod,
    /// The runtime's state of the pod.
    pub snapshot: &'a Snapshot,
    /// Results of the pod's probes.
    pub probe_results: &'a ProbeResults,
    /// Why containers wait.
    pub failures: &'a FailureReasons,
    /// The last result of [`compute_status`] or [`terminated_status`]; `None` takes the API server's status.
    pub previous: Option<&'a PodStatus>,
    /// The node's addresses, primary first.
    pub node_ips: &'a [IpAddr],
    /// The runtime's name, for container ids: `containerd`.
    pub runtime: &'a str,
    /// Whether the pod's runtime handler supports recursive read-only mounts.
    pub recursive_read_only: bool,
    /// Why the pod fails whatever its containers do, such as `DeadlineExceeded`. A finished pod does not change.
    pub failed: Option<&'a FailureReason>,
    /// Whether the pod was stopped and nothing is restarted, whatever the restart policy.
    pub terminated: bool,
    /// Start time of this process: a container that ran before keeps its readiness until it is probed.
    pub since: Option<Timestamp>,
    /// The current time.
    pub now: Timestamp,
}

/// Computes the status of the pod, with all conditions that a kubelet writes. The readiness gates of `Ready` are taken from the API
/// server's status.
pub fn compute_status(input: &StatusInput<'_>) -> PodStatus {
    let pod = input.pod;
    let old = input.old();
    let stored = pod.status.as_ref();
    let mut status = PodStatus { qos_class: Some(qos(pod).as_str().to_owned()), ..PodStatus::default() };
    containers::compose(input, &old, &mut status);
    addresses(input, &old, &mut status);
    resources::compose(pod, &mut status);

    let phase = phase::phase(pod, &status, input.terminated, has_begun(input));
    status.phase = Some(final_phase(phase, &old, stored));
    if status.phase == old.phase {
        // Reason and message belong to the phase.
        let stored = |text: fn(&PodStatus) -> &Option<String>| stored.and_then(|stored| text(stored).clone());
        status.reason = old.reason.clone().or_else(|| stored(|status| &status.reason));
        status.message = old.message.clone().or_else(|| stored(|status| &status.message));
    }
    let finished = |failed: &FailureReason| {
        let otherwise = is_finished(&old) && old.reason.as_ref() != Some(&failed.reason);
        otherwise || stored.is_some_and(is_finished)
    };
    if let Some(failed) = input.failed.filter(|failed| !finished(failed)) {
        status.phase = Some("Failed".to_owned());
        status.reason = Some(failed.reason.clone());
        status.message = Some(failed.message.clone());
    }

    readiness::compose(input, &mut status);
    conditions::compose(input, &old, &mut status);
    status.observed_generation = pod.metadata.generation.max(old.observed_generation);
    if !containers::may_follow(pod, &old, &status) {
        // The API server would reject it, and a kubelet does not try.
        return old;
    }
    report::set_times(&mut status, &old, input.now);
    report::trim_messages(pod, &mut status);
    status
}

// === impl StatusInput ===

impl StatusInput<'_> {
    fn old(&self) -> PodStatus {
        self.previous.or(self.pod.status.as_ref()).cloned().unwrap_or_default()
    }

    /// The container id in the API's notation.
    fn container_id(&self, id: &str) -> String {
        format!("{}://{id}", self.runtime)
    }
}

/// A final phase never changes: first that of the API server, then the new one, then the previous one.
fn final_phase(phase: &str, old: &PodStatus, stored: Option<&PodStatus>) -> String {
    let last = |status: Option<&PodStatus>| {
        status.and_then(|status| status.phase.clone()).filter(|phase| is_final(phase))
    };
    let now = Some(phase.to_owned()).filter(|phase| is_final(phase));
    last(stored).or(now).or_else(|| last(Some(old))).unwrap_or_else(|| phase.to_owned())
}

fn is_final(phase: &str) -> bool {
    vk_provider::pod::is_terminal_phase(Some(phase))
}

fn is_finished(status: &PodStatus) -> bool {
    status.phase.as_deref().is_some_and(is_final)
}

/// Whether a regular container was created in the current sandbox.
fn has_begun(input: &StatusInput<'_>) -> bool {
    let Some(sandbox) =
        input.snapshot.sandboxes.first().filter(|sandbox| sandbox.state == SandboxState::Ready)
    else {
        return false;
    };
    let regular = input.pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let inside = input.snapshot.containers.iter().filter(|container| container.sandbox == sandbox.id);
    inside.into_iter().any(|container| regular.iter().any(|one| one.name == container.name))
}

/// Sets the addresses of the pod and its node. A pod without a sandbox keeps its addresses.
fn addresses(input: &StatusInput<'_>, old: &PodStatus, status: &mut PodStatus) {
    let sandboxes = &input.snapshot.sandboxes;
    let is_ready = |sandbox: &&Sandbox| sandbox.state == SandboxState::Ready;
    let mut ips: Vec<IpAddr> =
        sandboxes.first().filter(is_ready).map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
    if ips.is_empty() && !sandboxes.iter().any(|sandbox| is_ready(&sandbox)) {
        ips = old.pod_ips.iter().flatten().filter_map(|known| known.ip.parse().ok()).collect();
    }
    let nodes = input.node_ips;
    // First an address of the node's family, then one of the other family.
    let first = nodes.first().is_some_and(IpAddr::is_ipv6);
    let of = |family: bool| ips.iter().find(|ip| ip.is_ipv6() == family).copied();
    let mut ips: Vec<IpAddr> = [of(first), of(!first)].into_iter().flatten().collect();
    let on_host = input.pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    if on_host {
        if ips.is_empty() {
            ips.extend(nodes.first());
        }
        if let ([one], Some(other)) = (ips.as_slice(), nodes.get(1))
            && one.is_ipv6() != other.is_ipv6()
        {
            ips.push(*other);
        }
    }
    let text = |list: &[IpAddr]| list.iter().take(2).map(ToString::to_string).collect::<Vec<_>>();
    let (nodes, ips) = (text(nodes), text(&ips));
    status.host_ip = nodes.first().cloned();
    status.host_ips = (!nodes.is_empty()).then(|| nodes.into_iter().map(|ip| HostIP { ip }).collect());
    status.pod_ip = ips.first().cloned();
    status.pod_ips = (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect());
}

fn find<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == name)
}

/// The time in whole seconds, as Kubernetes stores it.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The status of a pod that was rejected at admission.
pub fn rejected_status(pod: &Pod, status: &PodStatus, why: &FailureReason) -> PodStatus {
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(why.reason.clone()),
        message: Some(why.message.clone()),
        start_time: status.start_time.clone(),
        qos_class: Some(qos(pod).as_str().to_owned()),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests;
