//! Resources of the pod as a whole.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::{
    Quantity,
    requests::{ResourceList, amounts, limits, requests},
};

type ApiResourceList = BTreeMap<String, ApiQuantity>;

/// CPU requests up to this are the same number of cgroup shares.
const MIN_SHARE_MILLI: i64 = 2;
/// CPU limits up to this are the same cgroup quota.
const MIN_QUOTA_MILLI: i64 = 10;

/// Sets the allocated and actual resources of the pod: from its cgroup while it runs, otherwise from the spec.
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
    if let Some(cpu) = requests.get("cpu").filter(|cpu| cpu.to_milli() > MIN_SHARE_MILLI) {
        own.insert("cpu".to_owned(), Quantity::milli(cpu.to_milli()).into());
    }
    if let (false, Some(memory)) = (own.contains_key("memory"), requests.get("memory")) {
        own.insert("memory".to_owned(), (*memory).into());
    }
    whole.requests = (!own.is_empty()).then_some(own);
    let mut own = whole.limits.take().unwrap_or_default();
    if let Some(cpu) =
        limits.get("cpu").filter(|cpu| is_limited(pod, "cpu") && cpu.to_milli() > MIN_QUOTA_MILLI)
    {
        own.insert("cpu".to_owned(), Quantity::milli(cpu.to_milli()).into());
    }
    if let Some(memory) = limits.get("memory").filter(|_| is_limited(pod, "memory")) {
        own.insert("memory".to_owned(), Quantity::bytes(memory.to_units()).into());
    }
    whole.limits = (!own.is_empty()).then_some(own);
}

/// Whether the pod's cgroup is limited: by the pod, or because every container has a limit.
fn is_limited(pod: &Pod, resource: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let has = |resources: Option<&ResourceRequirements>| {
        let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
        limits.get(resource).is_some_and(|limit| *limit != Quantity::units(0))
    };
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    has(spec.resources.as_ref()) || all.all(|container| has(container.resources.as_ref()))
}

fn api(amounts: &ResourceList) -> Option<ApiResourceList> {
    (!amounts.is_empty())
        .then(|| amounts.iter().map(|(name, amount)| (name.clone(), (*amount).into())).collect())
}
