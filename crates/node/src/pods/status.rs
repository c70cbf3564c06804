//! The status that a pod shall have in the API server: what the provider reports, made whole and kept honest.
//!
//! A provider reports container states, addresses and a phase. The rest is the same for every backend and is done here:
//! standard conditions with their times, Ready from the readiness gates, the generation that was acted on, the start time.
//! And what the API server would not refuse but no kubelet would say is refused here: a phase that goes back, containers
//! that the pod does not have, a state that is two things at once.

mod conditions;
mod containers;
mod patch;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{HostIP, Pod, PodCondition, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::digest::Digest;

pub use self::{
    conditions::{
        CONTAINERS_READY, INITIALIZED, READY, READY_TO_START, RESIZE_IN_PROGRESS, RESIZE_PENDING, UPDATED,
    },
    containers::{all_ended, fill, lost},
    patch::{StatusPatch, Words},
};

/// What else is needed to compose a status.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Addresses of the node, for providers that do not tell their own.
    pub host_ips: Vec<String>,
    /// The time now.
    pub now: Timestamp,
    /// The generation of the pod's spec that the provider has acted on.
    pub generation: Option<i64>,
    /// What the core has to say beside the standard conditions.
    pub verdicts: Vec<PodCondition>,
}

/// A status, and what of the provider's report was not taken over.
#[derive(Clone, Debug, PartialEq)]
pub struct Composed {
    /// The status that the pod shall have.
    pub status: PodStatus,
    /// What the provider said and nobody could mean, for an event.
    pub refused: Vec<String>,
}

/// The phases, from the first to the last.
fn rank(phase: &str) -> u8 {
    match phase {
        "Running" => 1,
        "Succeeded" | "Failed" => 2,
        _ => 0,
    }
}

/// Whether a phase comes after the other.
pub fn is_later(phase: &str, other: Option<&str>) -> bool {
    rank(phase) > rank(other.unwrap_or("Pending"))
}

/// Whether a report is whole: one that tells even the class of service is a kubelet's, or made as one makes it, and nothing is filled
/// in.
fn is_whole(reported: &PodStatus) -> bool {
    reported.qos_class.as_deref().is_some_and(|class| !class.is_empty())
}

pub use vk_provider::pod::{is_terminal as has_ended, is_terminal_phase as is_terminal};

/// The status that the pod shall have, from what the provider reports and what the API server has.
pub fn compose(pod: &Pod, reported: &PodStatus, around: &Surroundings) -> Composed {
    let says_nothing_else = reported.conditions.is_none() && reported.container_statuses.is_none();
    if is_whole(reported) && is_terminal(reported.phase.as_deref()) && says_nothing_else {
        return rejected(pod, reported, around);
    }
    let none = PodStatus::default();
    let there = pod.status.as_ref().unwrap_or(&none);
    let mut refused = Vec::new();
    // A verdict of an earlier process stays, unless the provider knows better.
    let over = is_terminal(there.phase.as_deref()) && reported.reason.is_none();
    let (reason, message) = if over {
        (&there.reason, if reported.message.is_some() { &reported.message } else { &there.message })
    } else {
        (&reported.reason, &reported.message)
    };
    let mut status =
        PodStatus { reason: reason.clone(), message: message.clone(), resize: None, ..PodStatus::default() };
    // Why a pod has ended stays known, also when nobody who knew it is left.
    if is_terminal(there.phase.as_deref()) && status.reason.is_none() && status.message.is_none() {
        status.reason.clone_from(&there.reason);
        status.message.clone_from(&there.message);
    }
    containers::compose(pod, there, reported, &mut status, &mut refused);
    status.phase = Some(phase(pod, there, reported, &status, &mut refused));
    addresses(there, reported, around, &mut status, &mut refused);
    let reported_start = || reported.start_time.as_ref().map(|time| Time(whole_seconds(time.0)));
    let start = there.start_time.clone().or_else(reported_start);
    status.start_time = Some(start.unwrap_or_else(|| Time(whole_seconds(around.now))));
    status.observed_generation = around.generation.or(there.observed_generation);
    // Of the pod as a whole, where the provider knows it.
    status.resources = reported.resources.clone().or_else(|| there.resources.clone());
    status.allocated_resources =
        reported.allocated_resources.clone().or_else(|| there.allocated_resources.clone());
    conditions::compose(pod, there, reported, around, &mut status, &mut refused);
    Composed { status, refused }
}

/// The status of a pod that the node refused on sight: why, and nothing else, as by a kubelet, because there never was anything else.
pub fn rejected(pod: &Pod, reported: &PodStatus, around: &Surroundings) -> Composed {
    let start = pod.status.as_ref().and_then(|there| there.start_time.clone());
    let status = PodStatus {
        phase: reported.phase.clone(),
        reason: reported.reason.clone(),
        message: reported.message.clone(),
        start_time: Some(start.unwrap_or_else(|| Time(whole_seconds(around.now)))),
        observed_generation: around.generation,
        ..PodStatus::default()
    };
    Composed { status, refused: Vec::new() }
}

fn phase(
    pod: &Pod,
    there: &PodStatus,
    reported: &PodStatus,
    now: &PodStatus,
    refused: &mut Vec<String>,
) -> String {
    let before = there.phase.as_deref().unwrap_or("Pending");
    let said = reported.phase.as_deref().filter(|phase| !phase.is_empty());
    let wanted = said.map_or_else(|| containers::phase(pod, now), str::to_owned);
    if !matches!(wanted.as_str(), "Pending" | "Running" | "Succeeded" | "Failed" | "Unknown") {
        refused.push(format!("phase {wanted:?}, which there is not"));
        return before.to_owned();
    }
    let back = rank(&wanted) < rank(before) || (is_terminal(Some(before)) && wanted != before);
    if (before, wanted.as_str()) == ("Running", "Pending")
        && is_whole(reported)
        && containers::is_initializing(pod, now)
    {
        return wanted;
    }
    if back {
        refused.push(format!("phase {wanted} after {before}"));
        return before.to_owned();
    }
    wanted
}

fn addresses(
    there: &PodStatus,
    reported: &PodStatus,
    around: &Surroundings,
    status: &mut PodStatus,
    refused: &mut Vec<String>,
) {
    // The API server would refuse the whole write.
    let mut check = |list: &mut Vec<&str>| {
        list.retain(|text| {
            let good = text.is_empty() || text.parse::<IpAddr>().is_ok();
            if !good {
                refused.push(format!("the address {text:?}, which is none"));
            }
            good
        });
    };
    let mut hosts: Vec<&str> = reported.host_ip.iter().map(String::as_str).collect();
    hosts.extend(reported.host_ips.iter().flatten().map(|host| host.ip.as_str()));
    check(&mut hosts);
    if hosts.is_empty() {
        hosts.extend(around.host_ips.iter().map(String::as_str));
    }
    dedup(&mut hosts);
    let mut pods: Vec<&str> = reported.pod_ip.iter().map(String::as_str).collect();
    pods.extend(reported.pod_ips.iter().flatten().map(|pod| pod.ip.as_str()));
    check(&mut pods);
    dedup(&mut pods);
    // A pod that has ended keeps the address that it had.
    if pods.is_empty() && is_terminal(status.phase.as_deref()) {
        pods = there.pod_ips.iter().flatten().map(|pod| pod.ip.as_str()).collect();
    }
    let host = |ip: &str| HostIP { ip: ip.to_owned() };
    status.host_ip = hosts.first().map(|ip| (*ip).to_owned());
    status.host_ips = (!hosts.is_empty()).then(|| hosts.into_iter().map(host).collect());
    let pod = |ip: &str| PodIP { ip: ip.to_owned() };
    status.pod_ip = pods.first().map(|ip| (*ip).to_owned());
    status.pod_ips = (!pods.is_empty()).then(|| pods.into_iter().map(pod).collect());
}

fn dedup(list: &mut Vec<&str>) {
    let mut seen = Vec::with_capacity(list.len());
    list.retain(|item| {
        let new = !item.is_empty() && !seen.contains(item);
        seen.push(*item);
        new
    });
}

/// Kubernetes keeps whole seconds; anything finer would differ from what it answers.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Our part of a pod's status, for comparing.
pub fn digest(status: &PodStatus) -> Digest {
    let ours = |condition: &&PodCondition| conditions::is_ours(&condition.type_);
    let conditions: BTreeMap<&str, &PodCondition> =
        status.conditions.iter().flatten().filter(ours).map(|one| (one.type_.as_str(), one)).collect();
    Digest::of(&(
        (&status.phase, &status.reason, &status.message),
        (&status.host_ip, &status.host_ips, &status.pod_ip, &status.pod_ips),
        (&status.start_time, &status.observed_generation),
        (&status.resources, &status.allocated_resources),
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
        conditions,
    ))
}

/// Whether this status is there already but for what older API servers do not keep: the generation (before Kubernetes 1.34), and what the
/// pod has as a whole (before 1.36). By itself that is no reason to write about every pod at every start.
pub(crate) fn is_there_as_kept(status: &PodStatus, there: Option<&PodStatus>) -> bool {
    // Most that differ do so in this, and it costs nothing to see.
    let Some(there) = there.filter(|there| there.phase == status.phase) else { return false };
    let mut status = status.clone();
    if there.observed_generation.is_none() {
        status.observed_generation = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.observed_generation = None;
        }
    }
    if there.resources.is_none() && there.allocated_resources.is_none() {
        status.resources = None;
        status.allocated_resources = None;
    }
    digest(&status) == digest(there)
}

#[cfg(test)]
mod tests;
