//! The status of a pod as a kubelet would write it. Pure.
//!
//! Three steps, as the kubelet takes them: [`status`] says what is known now, [`settled`] what remains when nothing of the pod runs
//! any more, and [`told`] what of that others may hear already: nobody is told that a pod has ended while something of it may run.

mod conditions;
mod containers;
mod ending;
mod phase;
mod probed;
mod restart;
mod size;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, HostIP, Pod, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

pub use self::ending::{settled, told};
use crate::{
    make::qos,
    probe::Verdicts,
    snapshot::{Sandbox, SandboxState, Snapshot},
};

/// Why containers wait, by their names: what failed when each was last to be started. Gone with the next start that succeeds.
pub type Troubles = BTreeMap<String, Trouble>;

/// Why a container waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kubelet's word: `ErrImagePull`, `CrashLoopBackOff`, `RunContainerError`, ...
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// What a status is made of.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The pod, with the status that the API server has.
    pub pod: &'a Pod,
    /// What the runtime says.
    pub snapshot: &'a Snapshot,
    /// What probes have found out.
    pub verdicts: &'a Verdicts,
    /// Why containers wait.
    pub troubles: &'a Troubles,
    /// What [`status`] or [`settled`] answered last; `None` takes what the API server has.
    pub previous: Option<&'a PodStatus>,
    /// The node's addresses, primary first.
    pub node_ips: &'a [IpAddr],
    /// The runtime's name, for container ids: `containerd`.
    pub runtime: &'a str,
    /// Whether the pod's runtime handler can make mounts read-only with all that is below them.
    pub recursive_read_only: bool,
    /// Why the pod is to fail whatever its containers do, such as `DeadlineExceeded`. A pod that has ended stays as it is.
    pub failed: Option<&'a Trouble>,
    /// Whether everything of the pod was stopped and nothing is started again, whatever the restart policy says.
    pub over: bool,
    /// Since when this process runs: a container that ran before keeps its readiness until it is probed.
    pub since: Option<Timestamp>,
    /// The time now.
    pub now: Timestamp,
}

/// The status of the pod, with all conditions that a kubelet writes. Ready follows the readiness gates as far as the API server's status
/// tells them.
pub fn status(situation: &Situation<'_>) -> PodStatus {
    let pod = situation.pod;
    let old = situation.old();
    let there = pod.status.as_ref();
    let mut status = PodStatus { qos_class: Some(qos(pod).as_str().to_owned()), ..PodStatus::default() };
    containers::compose(situation, &old, &mut status);
    addresses(situation, &old, &mut status);
    size::compose(pod, &mut status);

    let phase = phase::phase(pod, &status, situation.over, has_begun(situation));
    status.phase = Some(decided(phase, &old, there));
    if status.phase == old.phase {
        // Reason and message belong to the phase.
        let there = |text: fn(&PodStatus) -> &Option<String>| there.and_then(|there| text(there).clone());
        status.reason = old.reason.clone().or_else(|| there(|status| &status.reason));
        status.message = old.message.clone().or_else(|| there(|status| &status.message));
    }
    let ended = |failed: &Trouble| {
        let otherwise = has_ended(&old) && old.reason.as_ref() != Some(&failed.reason);
        otherwise || there.is_some_and(has_ended)
    };
    if let Some(failed) = situation.failed.filter(|failed| !ended(failed)) {
        status.phase = Some("Failed".to_owned());
        status.reason = Some(failed.reason.clone());
        status.message = Some(failed.message.clone());
    }

    probed::compose(situation, &mut status);
    conditions::compose(situation, &old, &mut status);
    status.observed_generation = pod.metadata.generation.max(old.observed_generation);
    if !containers::may_follow(pod, &old, &status) {
        // The API server would refuse it, and a kubelet does not even try.
        return old;
    }
    ending::stamp(&mut status, &old, situation.now);
    ending::trim(pod, &mut status);
    status
}

// === impl Situation ===

impl Situation<'_> {
    fn old(&self) -> PodStatus {
        self.previous.or(self.pod.status.as_ref()).cloned().unwrap_or_default()
    }

    /// A container's id as the API has it.
    fn id(&self, id: &str) -> String {
        format!("{}://{id}", self.runtime)
    }
}

/// A phase once final stays, whoever has seen it: the API server before all.
fn decided(phase: &str, old: &PodStatus, there: Option<&PodStatus>) -> String {
    let last = |status: Option<&PodStatus>| {
        status.and_then(|status| status.phase.clone()).filter(|phase| is_final(phase))
    };
    let now = Some(phase.to_owned()).filter(|phase| is_final(phase));
    last(there).or(now).or_else(|| last(Some(old))).unwrap_or_else(|| phase.to_owned())
}

fn is_final(phase: &str) -> bool {
    vk_provider::pod::is_terminal_phase(Some(phase))
}

fn has_ended(status: &PodStatus) -> bool {
    status.phase.as_deref().is_some_and(is_final)
}

/// Whether a regular container was begun in the sandbox that the pod has now.
fn has_begun(situation: &Situation<'_>) -> bool {
    let Some(sandbox) =
        situation.snapshot.sandboxes.first().filter(|sandbox| sandbox.state == SandboxState::Ready)
    else {
        return false;
    };
    let regular = situation.pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let inside = situation.snapshot.containers.iter().filter(|container| container.sandbox == sandbox.id);
    inside.into_iter().any(|container| regular.iter().any(|one| one.name == container.name))
}

/// Where the pod and its node are reached. A pod without a sandbox keeps the addresses that it had.
fn addresses(situation: &Situation<'_>, old: &PodStatus, status: &mut PodStatus) {
    let sandboxes = &situation.snapshot.sandboxes;
    let is_ready = |sandbox: &&Sandbox| sandbox.state == SandboxState::Ready;
    let mut ips: Vec<IpAddr> =
        sandboxes.first().filter(is_ready).map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
    if ips.is_empty() && !sandboxes.iter().any(|sandbox| is_ready(&sandbox)) {
        ips = old.pod_ips.iter().flatten().filter_map(|known| known.ip.parse().ok()).collect();
    }
    let nodes = situation.node_ips;
    // One of the node's family first, then one of the other.
    let first = nodes.first().is_some_and(IpAddr::is_ipv6);
    let of = |family: bool| ips.iter().find(|ip| ip.is_ipv6() == family).copied();
    let mut ips: Vec<IpAddr> = [of(first), of(!first)].into_iter().flatten().collect();
    let on_host = situation.pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
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

/// Kubernetes keeps whole seconds.
fn whole(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The status of a pod that was refused before anything was made of it.
pub fn refused(pod: &Pod, status: &PodStatus, why: &Trouble) -> PodStatus {
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
