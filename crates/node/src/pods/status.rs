//! The status of a pod for the API server: the provider's report, completed and checked.
//!
//! A provider reports container states, addresses and a phase. The rest is the same for every backend and is done here:
//! standard conditions with their times, Ready from the readiness gates, the generation that was acted on, the start time.
//! Invalid reports that the API server would accept are refused here: a phase that goes back, containers that the pod does
//! not have, a container in two states at once.

mod conditions;
mod containers;
mod part;
mod patch;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{HostIP, Pod, PodCondition, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::digest::ValueDigest;

pub use self::{
    conditions::{
        CONTAINERS_READY, INITIALIZED, READY, READY_TO_START, RESIZE_IN_PROGRESS, RESIZE_PENDING, UPDATED,
    },
    containers::{all_ended, fill, lost},
    part::StatusPart,
    patch::{MetadataChanges, StatusPatch},
};

/// What else is needed to compose a status.
#[derive(Clone, Debug)]
pub struct StatusContext {
    /// Addresses of the node, for providers that do not report their own.
    pub host_ips: Vec<String>,
    /// The current time.
    pub now: Timestamp,
    /// The generation of the pod's spec that the provider has acted on.
    pub generation: Option<i64>,
    /// Conditions of the controller beside the standard ones.
    pub own_conditions: Vec<PodCondition>,
}

/// A status, and the parts of the provider's report that were left out.
#[derive(Clone, Debug, PartialEq)]
pub struct ComposedStatus {
    /// The status for the API server.
    pub status: PodStatus,
    /// The parts of the report that were invalid, for an event.
    pub refused: Vec<String>,
}

/// The order of the phases.
fn rank(phase: &str) -> u8 {
    match phase {
        "Running" => 1,
        "Succeeded" | "Failed" => 2,
        _ => 0,
    }
}

/// Whether a phase comes after another.
pub fn is_later(phase: &str, other: Option<&str>) -> bool {
    rank(phase) > rank(other.unwrap_or("Pending"))
}

/// Whether a report is complete. One that has a QoS class comes from a kubelet, or is made like a kubelet's, and nothing is filled
/// in.
fn is_complete(reported: &PodStatus) -> bool {
    reported.qos_class.as_deref().is_some_and(|class| !class.is_empty())
}

pub use vk_provider::pod::{is_terminal as has_ended, is_terminal_phase as is_terminal};

/// Composes the status from the provider's report and the status in the API server.
pub fn compose(pod: &Pod, reported: &PodStatus, context: &StatusContext) -> ComposedStatus {
    let says_nothing_else = reported.conditions.is_none() && reported.container_statuses.is_none();
    if is_complete(reported) && is_terminal(reported.phase.as_deref()) && says_nothing_else {
        return rejected(pod, reported, context);
    }
    let none = PodStatus::default();
    let there = pod.status.as_ref().unwrap_or(&none);
    let mut refused = Vec::new();
    // The reason that an earlier process wrote stays, unless the provider has another.
    let over = is_terminal(there.phase.as_deref()) && reported.reason.is_none();
    let (reason, message) = if over {
        (&there.reason, if reported.message.is_some() { &reported.message } else { &there.message })
    } else {
        (&reported.reason, &reported.message)
    };
    let mut status =
        PodStatus { reason: reason.clone(), message: message.clone(), resize: None, ..PodStatus::default() };
    // The reason of a pod that has ended stays, also when nobody reports it any more.
    if is_terminal(there.phase.as_deref()) && status.reason.is_none() && status.message.is_none() {
        status.reason.clone_from(&there.reason);
        status.message.clone_from(&there.message);
    }
    containers::compose(pod, there, reported, &mut status, &mut refused);
    status.phase = Some(phase(pod, there, reported, &status, &mut refused));
    addresses(there, reported, context, &mut status, &mut refused);
    let reported_start = || reported.start_time.as_ref().map(|time| Time(whole_seconds(time.0)));
    let start = there.start_time.clone().or_else(reported_start);
    status.start_time = Some(start.unwrap_or_else(|| Time(whole_seconds(context.now))));
    status.observed_generation = context.generation.or(there.observed_generation);
    // Of the pod as a whole, where the provider reports it.
    status.resources = reported.resources.clone().or_else(|| there.resources.clone());
    status.allocated_resources =
        reported.allocated_resources.clone().or_else(|| there.allocated_resources.clone());
    conditions::compose(pod, there, reported, context, &mut status, &mut refused);
    ComposedStatus { status, refused }
}

/// The status of a pod that the node rejected: the reason and nothing else, as a kubelet writes it.
pub fn rejected(pod: &Pod, reported: &PodStatus, context: &StatusContext) -> ComposedStatus {
    let start = pod.status.as_ref().and_then(|there| there.start_time.clone());
    let status = PodStatus {
        phase: reported.phase.clone(),
        reason: reported.reason.clone(),
        message: reported.message.clone(),
        start_time: Some(start.unwrap_or_else(|| Time(whole_seconds(context.now)))),
        observed_generation: context.generation,
        ..PodStatus::default()
    };
    ComposedStatus { status, refused: Vec::new() }
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
        && is_complete(reported)
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
    context: &StatusContext,
    status: &mut PodStatus,
    refused: &mut Vec<String>,
) {
    let mut hosts: Vec<&str> = reported.host_ip.iter().map(String::as_str).collect();
    hosts.extend(reported.host_ips.iter().flatten().map(|host| host.ip.as_str()));
    retain_valid(&mut hosts, refused);
    if hosts.is_empty() {
        hosts.extend(context.host_ips.iter().map(String::as_str));
        // A node may have several, and that is no fault of the provider.
        retain_valid(&mut hosts, &mut Vec::new());
    }
    let mut pods: Vec<&str> = reported.pod_ip.iter().map(String::as_str).collect();
    pods.extend(reported.pod_ips.iter().flatten().map(|pod| pod.ip.as_str()));
    retain_valid(&mut pods, refused);
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

/// Keeps what the API server accepts, the first of each family; it would refuse the whole write otherwise.
fn retain_valid(list: &mut Vec<&str>, refused: &mut Vec<String>) {
    let mut seen = Vec::with_capacity(list.len());
    let mut families = Vec::with_capacity(2);
    list.retain(|text| {
        if text.is_empty() || seen.contains(text) {
            return false;
        }
        seen.push(*text);
        // An IPv4 address in IPv6 notation is one of IPv4.
        let family = text.parse::<IpAddr>().map(|address| address.to_canonical().is_ipv4());
        match family {
            Err(_) => refused.push(format!("the address {text:?}, which is none")),
            Ok(family) if families.contains(&family) => {
                refused.push(format!("the address {text:?}, the second of its family"));
            }
            Ok(family) => {
                families.push(family);
                return true;
            }
        }
        false
    });
}

/// Kubernetes keeps whole seconds; anything finer would differ from what it answers.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The digest of our part of a pod's status.
pub(crate) fn digest(status: &PodStatus) -> ValueDigest {
    let ours = |condition: &&PodCondition| conditions::is_ours(&condition.type_);
    let conditions: BTreeMap<&str, &PodCondition> =
        status.conditions.iter().flatten().filter(ours).map(|one| (one.type_.as_str(), one)).collect();
    ValueDigest::of(&(
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

/// The digest of how a pod ended, by which two statuses are told apart that only differ in the time when they were computed.
pub(crate) fn outcome_digest(status: &PodStatus) -> ValueDigest {
    ValueDigest::of(&(
        (&status.phase, &status.reason, &status.message),
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ))
}

/// Whether the API server has this status but for what older ones do not store: the generation (before Kubernetes 1.34), and the
/// resources of the pod as a whole (before 1.36). That alone is no reason to write every pod at every start.
pub(crate) fn is_stored_except_unsupported(status: &PodStatus, there: Option<&PodStatus>) -> bool {
    // Most differ in this, and it is cheap to check.
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
