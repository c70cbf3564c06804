//! Whether the ResourceQuotas of a namespace admit a pod, as the API server decides when the pod is created.

mod scope;

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceQuota, ResourceRequirements};
use vk_provider::{
    Quantity,
    ability::Verdict,
    requests::{amounts, limits, requests},
};

/// Resources that every container must set if a quota limits them. The API server demands it of no others.
const MANDATORY: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// The quotas of a namespace, with the pods that their usage does not include yet.
#[derive(Debug)]
pub(crate) struct NamespaceQuotas<'a>(Vec<TrackedQuota<'a>>);

#[derive(Debug)]
struct TrackedQuota<'a> {
    quota: &'a ResourceQuota,
    /// What other pods take beside its usage, by the names that quotas use.
    held: BTreeMap<String, Quantity>,
}

/// What the quotas say about a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Admission {
    /// They admit this many pods like it, including this one.
    Admits {
        /// How many.
        room: u32,
    },
    /// A quota has not enough left.
    Exceeded(Shortage),
    /// A quota demands that containers set a resource. A LimitRange of the namespace may set it for them.
    MustSpecify {
        /// The quota.
        quota: String,
        /// The resource, as the quota names it.
        resource: String,
    },
    /// The usage of a quota has not been counted yet. The API server admits no pods until it has.
    NotCounted {
        /// The quota.
        quota: String,
    },
}

/// A quota that has not enough left.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shortage {
    quota: String,
    /// The resource, as the quota names it.
    resource: String,
    left: Quantity,
    /// How much there is in all.
    hard: Quantity,
    /// How much the pod needs.
    requested: Quantity,
}

// === impl NamespaceQuotas ===

impl<'a> NamespaceQuotas<'a> {
    pub(crate) fn new(quotas: impl IntoIterator<Item = &'a ResourceQuota>) -> Self {
        let tracked = |quota| TrackedQuota { quota, held: BTreeMap::new() };
        Self(quotas.into_iter().map(tracked).collect())
    }

    /// Counts a pod that the usage of the quotas does not include yet.
    pub(crate) fn add(&mut self, pod: &Pod) {
        self.count(pod, |sum, amount| sum + amount);
    }

    /// Leaves out a pod that the usage of the quotas includes.
    pub(crate) fn remove(&mut self, pod: &Pod) {
        self.count(pod, |sum, amount| sum - amount);
    }

    fn count(&mut self, pod: &Pod, with: impl Fn(Quantity, Quantity) -> Quantity) {
        let usage = usage(pod);
        for TrackedQuota { quota, held } in &mut self.0 {
            if !scope::matches(quota, pod) {
                continue;
            }
            for (name, amount) in &usage {
                let sum = held.entry(name.clone()).or_insert(Quantity::units(0));
                *sum = with(*sum, *amount);
            }
        }
    }

    /// Whether all quotas admit a pod.
    pub(crate) fn check(&self, pod: &Pod) -> Admission {
        let usage = usage(pod);
        let mut room = u32::MAX;
        for tracked in &self.0 {
            match check_one(tracked, pod, &usage) {
                Admission::Admits { room: more } => room = room.min(more),
                refusal => return refusal,
            }
        }
        Admission::Admits { room }
    }
}

/// The verdict on a pod when its quotas are considered, too.
pub(crate) fn restrict(verdict: Verdict, admission: &Admission) -> Verdict {
    match (verdict, admission) {
        (Verdict::Fits { room, fullness }, Admission::Admits { room: admitted }) => {
            Verdict::Fits { room: room.min(*admitted), fullness }
        }
        (verdict, Admission::Admits { .. }) | (verdict @ Verdict::Refused { lasting: true, .. }, _) => {
            verdict
        }
        (_, Admission::Exceeded(shortage)) => Verdict::refused(shortage.to_string(), shortage.is_lasting()),
        (verdict @ Verdict::Refused { .. }, _) => verdict,
        (_, Admission::MustSpecify { quota, resource }) => {
            Verdict::unknown(format!("quota {quota:?} requires {resource} of every container"))
        }
        (_, Admission::NotCounted { quota }) => {
            Verdict::unknown(format!("quota {quota:?} is not counted yet"))
        }
    }
}

fn check_one(
    TrackedQuota { quota, held }: &TrackedQuota<'_>,
    pod: &Pod,
    usage: &BTreeMap<String, Quantity>,
) -> Admission {
    let name = || quota.metadata.name.clone().unwrap_or_default();
    let status = quota.status.as_ref();
    let hard = amounts(status.and_then(|status| status.hard.as_ref()));
    let used = amounts(status.and_then(|status| status.used.as_ref()));
    let limited: Vec<(&String, &Quantity)> = hard.iter().filter(|(name, _)| is_of_pods(name)).collect();
    let spec_hard = amounts(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()));
    if limited.is_empty() && !spec_hard.keys().any(|name| is_of_pods(name)) || !scope::matches(quota, pod) {
        return Admission::Admits { room: u32::MAX };
    }
    if status.is_none_or(|status| status.hard.is_none()) {
        return Admission::NotCounted { quota: name() };
    }
    for (resource, _) in &limited {
        if MANDATORY.contains(&resource.as_str()) && !is_set_everywhere(pod, resource) {
            return Admission::MustSpecify { quota: name(), resource: (*resource).clone() };
        }
        if !used.contains_key(*resource) {
            return Admission::NotCounted { quota: name() };
        }
    }
    let nothing = Quantity::units(0);
    let mut room = u32::MAX;
    for (resource, hard) in limited {
        let Some(requested) = usage.get(resource).copied().filter(|amount| *amount > nothing) else {
            continue;
        };
        let amount_in = |list: &BTreeMap<String, Quantity>| list.get(resource).copied().unwrap_or(nothing);
        let left = *hard - amount_in(&used) - amount_in(held);
        if requested > left {
            let left = left.max(nothing);
            let resource = resource.clone();
            return Admission::Exceeded(Shortage { quota: name(), resource, left, hard: *hard, requested });
        }
        room = room.min(u32::try_from(left.divided_by(requested)).unwrap_or(u32::MAX));
    }
    Admission::Admits { room }
}

/// Whether a resource of a quota is about pods.
fn is_of_pods(resource: &str) -> bool {
    let fixed = matches!(
        resource,
        "pods"
            | "count/pods"
            | "cpu"
            | "memory"
            | "ephemeral-storage"
            | "requests.cpu"
            | "requests.memory"
            | "requests.ephemeral-storage"
            | "limits.cpu"
            | "limits.memory"
            | "limits.ephemeral-storage"
    );
    fixed
        || resource.starts_with("hugepages-")
        || resource.starts_with("requests.hugepages-")
        || resource.strip_prefix("requests.").is_some_and(|name| {
            name.contains('/') && (!name.contains("kubernetes.io/") || name.starts_with("deviceclass."))
        })
}

/// What a pod counts for, by the names that quotas use.
fn usage(pod: &Pod) -> BTreeMap<String, Quantity> {
    let mut usage = compute_usage(&requests(pod), &limits(pod));
    usage.insert("pods".to_owned(), Quantity::units(1));
    usage.insert("count/pods".to_owned(), Quantity::units(1));
    usage
}

fn compute_usage(
    requests: &BTreeMap<String, Quantity>,
    limits: &BTreeMap<String, Quantity>,
) -> BTreeMap<String, Quantity> {
    let mut usage = BTreeMap::new();
    for (name, amount) in requests {
        let is_standard = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if is_standard || name.starts_with("hugepages-") {
            usage.insert(name.clone(), *amount);
        }
        usage.insert(format!("requests.{name}"), *amount);
    }
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(amount) = limits.get(name) {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
    usage
}

/// Whether every container sets a resource that a quota limits. Pod-level resources make it unnecessary.
fn is_set_everywhere(pod: &Pod, resource: &str) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let is_pod_level =
        |name: &String| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-");
    let names = |resources: &ResourceRequirements| {
        let lists = [&resources.requests, &resources.limits];
        lists.into_iter().flatten().flat_map(BTreeMap::keys).any(is_pod_level)
    };
    if spec.resources.as_ref().is_some_and(names) {
        return true;
    }
    let sets = |container: &Container| {
        let resources = container.resources.as_ref();
        let requests = amounts(resources.and_then(|resources| resources.requests.as_ref()));
        let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
        compute_usage(&requests, &limits).contains_key(resource)
    };
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).all(sets)
}

// === impl Shortage ===

impl Shortage {
    /// Whether the pod needs more than the quota has in all.
    pub(crate) fn is_lasting(&self) -> bool {
        self.requested > self.hard
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, resource, left, hard, .. } = self;
        write!(f, "quota {quota:?} has {left} of {hard} {resource} left")
    }
}

#[cfg(test)]
mod tests;
