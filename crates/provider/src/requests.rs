//! Resource requests and limits of pods.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use crate::quantity::Quantity;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The requests of a pod, as the scheduler and the kubelet compute them: the sum of containers and sidecars, or the largest
/// init step if that is more; pod-level requests override it; plus the overhead.
pub fn requests(pod: &Pod) -> ResourceList {
    let mut all = total(pod, |resources| amounts(resources.requests.as_ref()));
    add(&mut all, &overhead(pod));
    all
}

/// The limits of a pod, computed in the same way. The overhead is added only to resources that have a limit.
pub fn limits(pod: &Pod) -> ResourceList {
    let mut all = total(pod, |resources| amounts(resources.limits.as_ref()));
    let mut overhead = overhead(pod);
    overhead.retain(|name, _| all.get(name).is_some_and(|limit| *limit != Quantity::units(0)));
    add(&mut all, &overhead);
    all
}

fn overhead(pod: &Pod) -> ResourceList {
    amounts(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()))
}

fn total(pod: &Pod, list: impl Fn(&ResourceRequirements) -> ResourceList) -> ResourceList {
    let Some(spec) = &pod.spec else { return ResourceList::new() };
    let of = |container: &Container| container.resources.as_ref().map(&list).unwrap_or_default();
    let mut all = ResourceList::new();
    for container in &spec.containers {
        add(&mut all, &of(container));
    }
    let (mut sidecars, mut largest) = (ResourceList::new(), ResourceList::new());
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

/// Whether an init container is a sidecar: one that keeps running beside the regular containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Converts a list from the API. Values that are not quantities are skipped.
pub fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> ResourceList {
    // The API server has validated the quantities.
    let read = |(name, text): (&String, &ApiQuantity)| Some((name.clone(), text.0.parse().ok()?));
    list.into_iter().flatten().filter_map(read).collect()
}

/// Adds the quantities of `more` to those of `to`, which keep their notation.
pub fn add(to: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        to.entry(name.clone()).and_modify(|sum| *sum = *sum + *amount).or_insert(*amount);
    }
}

fn raise(to: &mut ResourceList, least: ResourceList) {
    for (name, amount) in least {
        let largest = to.entry(name).or_insert(amount);
        *largest = (*largest).max(amount);
    }
}
