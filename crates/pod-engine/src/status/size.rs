//! How large a pod is: what all of it has together.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::{
    Quantity,
    requests::{ResourceList, amounts, limits, requests},
};

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

fn cgroup(pod: &Pod, requests: &ResourceList, limits: &ResourceList, whole: &mut ResourceRequirements) {
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

fn api(amounts: &ResourceList) -> Option<ApiAmounts> {
    (!amounts.is_empty())
        .then(|| amounts.iter().map(|(name, amount)| (name.clone(), (*amount).into())).collect())
}
