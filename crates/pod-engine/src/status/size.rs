//! How large a pod is: what all of it has together.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::Quantity;

use crate::parts::is_sidecar;

type Amounts = BTreeMap<String, Quantity>;
type ApiAmounts = BTreeMap<String, ApiQuantity>;

/// Below this a share of processors cannot be told from the least share.
const LEAST_SHARE: i64 = 2;
/// Below this a limit of processors cannot be told from the least limit.
const LEAST_LIMIT: i64 = 10;

/// Puts in what the pod as a whole was given and has: while it runs as its cgroup would say, before and after as the spec does.
pub(super) fn compose(pod: &Pod, status: &mut PodStatus) {
    let Some(spec) = &pod.spec else { return };
    let (requests, limits) = (requests(pod), limits(pod));
    status.allocated_resources = api(&requests);
    let runs = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let mut whole = spec.resources.clone().unwrap_or_default();
    if runs {
        cgroup(pod, &requests, &limits, &mut whole);
    } else {
        whole.requests = api(&requests);
        whole.limits = api(&limits);
    }
    status.resources = Some(whole);
}

fn cgroup(pod: &Pod, requests: &Amounts, limits: &Amounts, whole: &mut ResourceRequirements) {
    let mut own = whole.requests.take().unwrap_or_default();
    if let Some(cpu) = requests.get("cpu").filter(|cpu| cpu.to_milli() > LEAST_SHARE) {
        own.insert("cpu".to_owned(), Quantity::milli(cpu.to_milli()).into());
    }
    if let (false, Some(memory)) = (own.contains_key("memory"), requests.get("memory")) {
        own.insert("memory".to_owned(), (*memory).into());
    }
    whole.requests = (!own.is_empty()).then_some(own);
    let mut own = whole.limits.take().unwrap_or_default();
    if let Some(cpu) = limits.get("cpu").filter(|cpu| is_limited(pod, "cpu") && cpu.to_milli() > LEAST_LIMIT)
    {
        own.insert("cpu".to_owned(), Quantity::milli(cpu.to_milli()).into());
    }
    if let Some(memory) = limits.get("memory").filter(|_| is_limited(pod, "memory")) {
        own.insert("memory".to_owned(), Quantity::bytes(memory.to_units()).into());
    }
    whole.limits = (!own.is_empty()).then_some(own);
}

/// Whether the pod's cgroup has a limit: its own, or because every container has one.
fn is_limited(pod: &Pod, resource: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let has = |resources: Option<&ResourceRequirements>| {
        let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
        limits.get(resource).is_some_and(|limit| *limit != Quantity::units(0))
    };
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    has(spec.resources.as_ref()) || all.all(|container| has(container.resources.as_ref()))
}

/// What the pod requests: the containers with the sidecars, or the largest step of its initialisation; what it says as a whole instead;
/// and the overhead of its runtime.
fn requests(pod: &Pod) -> Amounts {
    let requests = |resources: &ResourceRequirements| amounts(resources.requests.as_ref());
    let mut all = total(pod, requests);
    add(&mut all, &amounts(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref())));
    all
}

/// The same of limits, where the overhead is added only to what is limited.
fn limits(pod: &Pod) -> Amounts {
    let limits = |resources: &ResourceRequirements| amounts(resources.limits.as_ref());
    let mut all = total(pod, limits);
    let mut overhead = amounts(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()));
    overhead.retain(|name, _| all.get(name).is_some_and(|limit| *limit != Quantity::units(0)));
    add(&mut all, &overhead);
    all
}

fn total(pod: &Pod, list: impl Fn(&ResourceRequirements) -> Amounts) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |container: &Container| container.resources.as_ref().map(&list).unwrap_or_default();
    let mut all = Amounts::new();
    for container in &spec.containers {
        add(&mut all, &of(container));
    }
    let (mut sidecars, mut largest) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut step = sidecars.clone();
        add(&mut step, &own);
        if is_sidecar(container) {
            add(&mut all, &own);
            sidecars.clone_from(&step);
        }
        raise(&mut largest, step);
    }
    raise(&mut all, largest);
    for (name, amount) in spec.resources.as_ref().map(&list).unwrap_or_default() {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            all.insert(name, amount);
        }
    }
    all
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        to.entry(name.clone()).and_modify(|known| *known = *known + *amount).or_insert(*amount);
    }
}

fn raise(to: &mut Amounts, least: Amounts) {
    for (name, amount) in least {
        let known = to.entry(name).or_insert(amount);
        *known = (*known).max(amount);
    }
}

/// What is no quantity was refused by the API server.
fn amounts(list: Option<&ApiAmounts>) -> Amounts {
    let parsed =
        list.into_iter().flatten().filter_map(|(name, amount)| Some((name.clone(), amount.try_into().ok()?)));
    parsed.collect()
}

fn api(amounts: &Amounts) -> Option<ApiAmounts> {
    (!amounts.is_empty())
        .then(|| amounts.iter().map(|(name, amount)| (name.clone(), (*amount).into())).collect())
}
