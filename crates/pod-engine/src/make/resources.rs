//! Limits, in the kernel's numbers.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::quantity::Quantity;

use super::{Machine, Qos, qos};
use crate::{
    Settings,
    backend::Resources,
    parts::{self, Part, Role},
};

/// Microseconds.
const PERIOD: i64 = 100_000;
const LEAST_QUOTA: i64 = 1000;
const LEAST_SHARES: i64 = 2;
const MOST_SHARES: i64 = 262_144;
/// Scores for the kernel's killer: the last to be killed, and the first.
const LAST: i64 = -997;
const FIRST: i64 = 1000;
const HUGE_PAGES: &str = "hugepages-";

type Amounts = BTreeMap<String, ApiQuantity>;

pub(super) fn of_container(pod: &Pod, part: &Part<'_>, settings: &Settings, machine: &Machine) -> Resources {
    let none = ResourceRequirements::default();
    let own = part.container.resources.as_ref().unwrap_or(&none);
    let whole = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()).filter(|whole| counts(whole));
    // A container without a limit is held by the pod's.
    let limit = |name: &str| {
        let own = amount(own.limits.as_ref(), name);
        let whole = || amount(whole.and_then(|whole| whole.limits.as_ref()), name);
        own.filter(|own| *own != Quantity::units(0)).or_else(whole)
    };
    let mut resources = limits(amount(own.requests.as_ref(), "cpu"), limit("cpu"), limit("memory"), machine);
    let score = oom_score(pod, part, i64::try_from(settings.memory).unwrap_or(i64::MAX));
    resources.oom_score_adj = score.max(settings.oom_score_floor);
    let asked = [whole.and_then(|whole| whole.limits.as_ref()), own.limits.as_ref()];
    resources.hugepages = huge_pages(machine, asked.into_iter().flatten());
    if machine.swap {
        if machine.unified {
            resources.unified.insert("memory.swap.max".to_owned(), "0".to_owned());
        } else {
            resources.memory_swap_limit = resources.memory_limit;
        }
    }
    resources
}

/// What the containers of a pod take together.
pub(super) fn of_sandbox(spec: &PodSpec, machine: &Machine) -> Resources {
    let mut requests = together(spec, |resources| resources.requests.as_ref());
    let mut most = together(spec, |resources| resources.limits.as_ref());
    if let Some(whole) = spec.resources.as_ref().filter(|whole| counts(whole)) {
        replace(&mut requests, whole.requests.as_ref());
        replace(&mut most, whole.limits.as_ref());
    }
    limits(requests.get("cpu").copied(), most.get("cpu").copied(), most.get("memory").copied(), machine)
}

/// What a pod takes beside its containers.
pub(super) fn overhead(spec: &PodSpec, machine: &Machine) -> Option<Resources> {
    let overhead = spec.overhead.as_ref()?;
    let cpu = amount(Some(overhead), "cpu").unwrap_or(Quantity::units(0));
    Some(limits(Some(cpu), Some(cpu), amount(Some(overhead), "memory"), machine))
}

fn limits(
    request: Option<Quantity>,
    cpu: Option<Quantity>,
    memory: Option<Quantity>,
    machine: &Machine,
) -> Resources {
    let milli = |amount: Option<Quantity>| amount.map_or(0, Quantity::to_milli);
    let mut unified = BTreeMap::new();
    if machine.unified {
        // All processes of a container end together when its memory does.
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

/// Weight for thousandths of a processor.
fn shares(milli: i64) -> i64 {
    let shares = i128::from(milli) * 1024 / 1000;
    i64::try_from(shares).unwrap_or(MOST_SHARES).clamp(LEAST_SHARES, MOST_SHARES)
}

/// Microseconds per period for thousandths of a processor; 0 is without limit.
fn quota(milli: i64) -> i64 {
    if milli == 0 {
        return 0;
    }
    let quota = i128::from(milli) * i128::from(PERIOD) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(LEAST_QUOTA)
}

/// How early the kernel kills a container when memory runs out: who asked for much is killed late, as long as it takes no more.
fn oom_score(pod: &Pod, part: &Part<'_>, capacity: i64) -> i64 {
    let Some(spec) = &pod.spec else { return FIRST };
    let critical = spec.priority.unwrap_or_default() >= 2_000_000_000
        && spec.priority_class_name.as_deref() == Some("system-node-critical");
    match qos(pod) {
        _ if critical => return LAST,
        Qos::Guaranteed => return LAST,
        Qos::BestEffort => return FIRST,
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
    let mut adjusted = score(requested(&part.container));
    if part.role == Role::Sidecar
        && let Some(least) = spec.containers.iter().map(requested).min()
    {
        // What the others live on is not killed before them.
        adjusted = adjusted.min(score(least));
    }
    // Between the two other classes, whatever it asks for.
    adjusted.clamp(FIRST + LAST, FIRST - 1)
}

/// The part of the pod's own request that no container has asked for, divided among them.
fn spare_memory(spec: &PodSpec) -> i64 {
    let requests = spec.resources.as_ref().and_then(|whole| whole.requests.as_ref());
    let whole = amount(requests, "memory").map_or(0, Quantity::to_units);
    let containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    match i64::try_from(containers) {
        Ok(containers) if whole != 0 && containers > 0 => {
            let taken = together(spec, |resources| resources.requests.as_ref());
            (whole - taken.get("memory").map_or(0, |memory| memory.to_units())) / containers
        }
        _ => 0,
    }
}

/// A limit for each size of huge pages that the machine has.
fn huge_pages<'a>(machine: &Machine, asked: impl Iterator<Item = &'a Amounts>) -> BTreeMap<String, u64> {
    let mut pages: BTreeMap<String, u64> = machine.huge_pages.iter().map(|size| (size.clone(), 0)).collect();
    for (name, amount) in asked.flatten() {
        let size = name.strip_prefix(HUGE_PAGES).and_then(|size| size.parse::<Quantity>().ok());
        let (Some(size), Ok(amount)) = (size, Quantity::try_from(amount)) else { continue };
        if let Some(limit) = unit(size.to_units()).and_then(|size| pages.get_mut(&size)) {
            *limit = u64::try_from(amount.to_units()).unwrap_or_default();
        }
    }
    pages
}

/// Bytes in the notation of cgroups, such as `2MB`.
fn unit(mut bytes: i64) -> Option<String> {
    let mut units = ["B", "KB", "MB", "GB", "TB", "PB"].into_iter();
    let mut unit = units.next()?;
    while bytes > 0 && bytes % 1024 == 0 {
        let Some(next) = units.next() else { break };
        (bytes, unit) = (bytes / 1024, next);
    }
    (bytes > 0 && bytes <= 1024).then(|| format!("{bytes}{unit}"))
}

/// The sum over a pod: containers and sidecars together, or the largest moment while it is initialised.
fn together(
    spec: &PodSpec,
    pick: impl Fn(&ResourceRequirements) -> Option<&Amounts>,
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
        let mut moment = sidecars.clone();
        add(&mut moment, &own);
        if parts::is_sidecar(container) {
            add(&mut sum, &own);
            sidecars.clone_from(&moment);
        }
        raise(&mut largest, &moment);
    }
    raise(&mut sum, &largest);
    sum
}

fn add(sum: &mut BTreeMap<String, Quantity>, more: &BTreeMap<String, Quantity>) {
    for (name, amount) in more {
        let total = sum.entry(name.clone()).or_insert(Quantity::units(0));
        *total = *total + *amount;
    }
}

fn raise(sum: &mut BTreeMap<String, Quantity>, other: &BTreeMap<String, Quantity>) {
    for (name, amount) in other {
        let total = sum.entry(name.clone()).or_insert(*amount);
        *total = (*total).max(*amount);
    }
}

fn replace(sum: &mut BTreeMap<String, Quantity>, whole: Option<&Amounts>) {
    for (name, amount) in whole.into_iter().flatten().filter(|(name, _)| is_pod_level(name)) {
        if let Ok(amount) = Quantity::try_from(amount) {
            sum.insert(name.clone(), amount);
        }
    }
}

/// Whether resources are given for the pod as a whole.
fn counts(whole: &ResourceRequirements) -> bool {
    let lists = [whole.requests.as_ref(), whole.limits.as_ref()];
    lists.into_iter().flatten().flatten().any(|(name, _)| is_pod_level(name))
}

fn is_pod_level(name: &str) -> bool {
    ["cpu", "memory"].contains(&name) || name.starts_with(HUGE_PAGES)
}

/// An amount by its name. One that cannot be read, which an API server never gives, is not there.
fn amount(amounts: Option<&Amounts>, name: &str) -> Option<Quantity> {
    Quantity::try_from(amounts?.get(name)?).ok()
}

#[cfg(test)]
mod tests;
