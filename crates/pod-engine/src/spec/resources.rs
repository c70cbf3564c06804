//! Resource limits in cgroup units.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::{
    quantity::Quantity,
    requests::{self, is_sidecar},
};

use super::{HostFeatures, Qos, qos};
use crate::{
    Settings,
    backend::Resources,
    containers::{PodContainer, Role},
};

/// CPU quota period in microseconds.
const PERIOD: i64 = 100_000;
const MIN_QUOTA: i64 = 1000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// OOM score adjustments: the last to be killed, and the first.
const OOM_SCORE_LAST: i64 = -997;
const OOM_SCORE_FIRST: i64 = 1000;
const HUGE_PAGES: &str = "hugepages-";

type ApiResources = BTreeMap<String, ApiQuantity>;

pub(super) fn of_container(
    pod: &Pod,
    container: &PodContainer<'_>,
    settings: &Settings,
    features: &HostFeatures,
) -> Resources {
    let none = ResourceRequirements::default();
    let own = container.spec.resources.as_ref().unwrap_or(&none);
    let whole =
        pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()).filter(|whole| has_pod_level(whole));
    // The pod's limit applies to a container without its own.
    let limit = |name: &str| {
        let own = amount(own.limits.as_ref(), name);
        let whole = || amount(whole.and_then(|whole| whole.limits.as_ref()), name);
        own.filter(|own| *own != Quantity::units(0)).or_else(whole)
    };
    let mut resources = limits(amount(own.requests.as_ref(), "cpu"), limit("cpu"), limit("memory"), features);
    let score = oom_score(pod, container, i64::try_from(settings.memory).unwrap_or(i64::MAX));
    resources.oom_score_adj = score.max(settings.oom_score_floor);
    let asked = [whole.and_then(|whole| whole.limits.as_ref()), own.limits.as_ref()];
    resources.hugepages = huge_pages(features, asked.into_iter().flatten());
    if features.swap {
        if features.unified {
            resources.unified.insert("memory.swap.max".to_owned(), "0".to_owned());
        } else {
            resources.memory_swap_limit = resources.memory_limit;
        }
    }
    resources
}

/// The total resources of a pod's containers.
pub(super) fn of_sandbox(spec: &PodSpec, features: &HostFeatures) -> Resources {
    let mut requests = effective_sum(spec, |resources| resources.requests.as_ref());
    let mut most = effective_sum(spec, |resources| resources.limits.as_ref());
    if let Some(whole) = spec.resources.as_ref().filter(|whole| has_pod_level(whole)) {
        replace(&mut requests, whole.requests.as_ref());
        replace(&mut most, whole.limits.as_ref());
    }
    limits(requests.get("cpu").copied(), most.get("cpu").copied(), most.get("memory").copied(), features)
}

/// The limits of a pod's own cgroup. They are not what a kubelet tells the runtime about the sandbox (`of_sandbox`): quota and
/// memory limit hold for the pod as a whole only if every container has one, or the pod itself. Otherwise a container without a
/// limit would be throttled or killed by those of its neighbours.
pub fn pod_limits(pod: &Pod, features: &HostFeatures) -> Resources {
    let (requests, limits) = (requests::requests(pod), requests::limits(pod));
    let declared = |name: &str| {
        let spec = pod.spec.as_ref()?;
        let is_set = |resources: Option<&ResourceRequirements>| {
            let limit = amount(resources.and_then(|resources| resources.limits.as_ref()), name);
            limit.is_some_and(|limit| limit != Quantity::units(0))
        };
        let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let all = is_set(spec.resources.as_ref())
            || containers.all(|container| is_set(container.resources.as_ref()));
        limits.get(name).copied().filter(|_| all)
    };
    let milli = |amount: Option<Quantity>| amount.map_or(0, Quantity::to_milli);
    Resources {
        cpu_period: PERIOD,
        cpu_quota: quota(milli(declared("cpu"))),
        cpu_shares: shares(milli(requests.get("cpu").copied())),
        memory_limit: declared("memory").map_or(0, Quantity::to_units),
        hugepages: pod_huge_pages(features, &requests),
        ..Resources::default()
    }
}

/// The weight and the memory of the cgroup of all pods: what the node has for them. As in a kubelet, memory is a limit and CPU a
/// weight.
pub(crate) fn node_limits(cpu: Option<Quantity>, memory: Option<Quantity>) -> Resources {
    Resources {
        cpu_shares: cpu.map_or(0, |cpu| shares(cpu.to_milli())),
        memory_limit: memory.map_or(0, Quantity::to_units),
        ..Resources::default()
    }
}

/// The weight of the cgroup of a QoS class whose pods request this many milli CPUs.
pub(crate) fn class_limits(milli: i64) -> Resources {
    Resources { cpu_shares: shares(milli), ..Resources::default() }
}

/// The overhead of a pod.
pub(super) fn overhead(spec: &PodSpec, features: &HostFeatures) -> Option<Resources> {
    let overhead = spec.overhead.as_ref()?;
    let cpu = amount(Some(overhead), "cpu").unwrap_or(Quantity::units(0));
    Some(limits(Some(cpu), Some(cpu), amount(Some(overhead), "memory"), features))
}

fn limits(
    request: Option<Quantity>,
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
    features: &HostFeatures,
) -> Resources {
    let milli = |amount: Option<Quantity>| amount.map_or(0, Quantity::to_milli);
    let mut unified = BTreeMap::new();
    if features.unified {
        // The OOM killer ends all processes of a container together.
        unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    Resources {
        cpu_period: PERIOD,
        cpu_quota: quota(milli(cpu)),
        cpu_shares: shares(milli(request.or(cpu))),
        memory_limit: memory.map_or(0, Quantity::to_units),
        unified,
        ..Resources::default()
    }
}

/// CPU shares for milli CPUs.
fn shares(milli: i64) -> i64 {
    let shares = i128::from(milli) * 1024 / 1000;
    i64::try_from(shares).unwrap_or(MAX_SHARES).clamp(MIN_SHARES, MAX_SHARES)
}

/// CPU quota for milli CPUs, in microseconds per period; 0 means no limit.
fn quota(milli: i64) -> i64 {
    if milli == 0 {
        return 0;
    }
    let quota = i128::from(milli) * i128::from(PERIOD) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(MIN_QUOTA)
}

/// The OOM score adjustment of a container: the larger its memory request, the later it is killed.
fn oom_score(pod: &Pod, container: &PodContainer<'_>, capacity: i64) -> i64 {
    let Some(spec) = &pod.spec else { return OOM_SCORE_FIRST };
    let critical = spec.priority.unwrap_or_default() >= 2_000_000_000
        && spec.priority_class_name.as_deref() == Some("system-node-critical");
    match qos(pod) {
        _ if critical => return OOM_SCORE_LAST,
        Qos::Guaranteed => return OOM_SCORE_LAST,
        Qos::BestEffort => return OOM_SCORE_FIRST,
        Qos::Burstable => {}
    }
    let requested = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        amount(requests, "memory").map_or(0, Quantity::to_units)
    };
    let spare = spare_memory(spec);
    let score = |memory: i64| {
        let share = 1000 * i128::from(memory.saturating_add(spare)) / i128::from(capacity.max(1));
        i64::try_from(1000 - share).unwrap_or(i64::MIN)
    };
    let mut adjusted = score(requested(&container.spec));
    if container.role == Role::Sidecar
        && let Some(least) = spec.containers.iter().map(requested).min()
    {
        // A sidecar is not killed before the containers that use it.
        adjusted = adjusted.min(score(least));
    }
    // Always between the other two classes.
    adjusted.clamp(OOM_SCORE_FIRST + OOM_SCORE_LAST, OOM_SCORE_FIRST - 1)
}

/// The part of the pod-level memory request that no container requests, divided by the number of containers.
fn spare_memory(spec: &PodSpec) -> i64 {
    let requests = spec.resources.as_ref().and_then(|whole| whole.requests.as_ref());
    let whole = amount(requests, "memory").map_or(0, Quantity::to_units);
    let containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    match i64::try_from(containers) {
        Ok(containers) if whole != 0 && containers > 0 => {
            let taken = effective_sum(spec, |resources| resources.requests.as_ref());
            (whole - taken.get("memory").map_or(0, |memory| memory.to_units())) / containers
        }
        _ => 0,
    }
}

/// A limit for each huge page size of the host.
fn huge_pages<'a>(
    features: &HostFeatures,
    asked: impl Iterator<Item = &'a ApiResources>,
) -> BTreeMap<String, u64> {
    let mut pages: BTreeMap<String, u64> = features.huge_pages.iter().map(|size| (size.clone(), 0)).collect();
    for (name, amount) in asked.flatten() {
        let size = name.strip_prefix(HUGE_PAGES).and_then(|size| size.parse::<Quantity>().ok());
        let (Some(size), Ok(amount)) = (size, Quantity::try_from(amount)) else { continue };
        if let Some(limit) = unit(size.to_units()).and_then(|size| pages.get_mut(&size)) {
            *limit = u64::try_from(amount.to_units()).unwrap_or_default();
        }
    }
    pages
}

/// A limit for each huge page size of the host, from the requests of a whole pod.
fn pod_huge_pages(features: &HostFeatures, requests: &BTreeMap<String, Quantity>) -> BTreeMap<String, u64> {
    let mut pages: BTreeMap<String, u64> = features.huge_pages.iter().map(|size| (size.clone(), 0)).collect();
    for (name, amount) in requests {
        let size = name.strip_prefix(HUGE_PAGES).and_then(|size| size.parse::<Quantity>().ok());
        if let Some(limit) = size.and_then(|size| unit(size.to_units())).and_then(|size| pages.get_mut(&size))
        {
            *limit = u64::try_from(amount.to_units()).unwrap_or_default();
        }
    }
    pages
}

/// A page size in the notation of cgroups, such as `2MB`.
fn unit(mut bytes: i64) -> Option<String> {
    let mut units = ["B", "KB", "MB", "GB", "TB", "PB"].into_iter();
    let mut unit = units.next()?;
    while bytes > 0 && bytes % 1024 == 0 {
        let Some(next) = units.next() else { break };
        (bytes, unit) = (bytes / 1024, next);
    }
    (bytes > 0 && bytes <= 1024).then(|| format!("{bytes}{unit}"))
}

/// The effective sum of a pod: its containers and sidecars, or the peak during initialization if that is larger.
fn effective_sum(
    spec: &PodSpec,
    pick: impl Fn(&ResourceRequirements) -> Option<&ApiResources>,
) -> BTreeMap<String, Quantity> {
    let of = |container: &Container| {
        let amounts = container.resources.as_ref().and_then(&pick).into_iter().flatten();
        let read =
            amounts.filter_map(|(name, amount)| Some((name.clone(), Quantity::try_from(amount).ok()?)));
        read.collect::<BTreeMap<_, _>>()
    };
    let mut sum = BTreeMap::new();
    for container in &spec.containers {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut largest) = (BTreeMap::new(), BTreeMap::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut step = sidecars.clone();
        add(&mut step, &own);
        if is_sidecar(container) {
            add(&mut sum, &own);
            sidecars.clone_from(&step);
        }
        raise_to(&mut largest, &step);
    }
    raise_to(&mut sum, &largest);
    sum
}

fn add(sum: &mut BTreeMap<String, Quantity>, more: &BTreeMap<String, Quantity>) {
    for (name, amount) in more {
        let total = sum.entry(name.clone()).or_insert(Quantity::units(0));
        *total = *total + *amount;
    }
}

fn raise_to(sum: &mut BTreeMap<String, Quantity>, other: &BTreeMap<String, Quantity>) {
    for (name, amount) in other {
        let total = sum.entry(name.clone()).or_insert(*amount);
        *total = (*total).max(*amount);
    }
}

fn replace(sum: &mut BTreeMap<String, Quantity>, whole: Option<&ApiResources>) {
    for (name, amount) in whole.into_iter().flatten().filter(|(name, _)| is_pod_level(name)) {
        if let Ok(amount) = Quantity::try_from(amount) {
            sum.insert(name.clone(), amount);
        }
    }
}

/// Whether pod-level resources are set.
fn has_pod_level(whole: &ResourceRequirements) -> bool {
    let lists = [whole.requests.as_ref(), whole.limits.as_ref()];
    lists.into_iter().flatten().flatten().any(|(name, _)| is_pod_level(name))
}

fn is_pod_level(name: &str) -> bool {
    ["cpu", "memory"].contains(&name) || name.starts_with(HUGE_PAGES)
}

/// A resource by name; `None` if it is malformed, which an API server does not accept.
fn amount(amounts: Option<&ApiResources>, name: &str) -> Option<Quantity> {
    Quantity::try_from(amounts?.get(name)?).ok()
}

#[cfg(test)]
mod tests;
