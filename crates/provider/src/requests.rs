//! Resource requests and limits of pods.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use crate::quantity::Quantity;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The requests of a pod, as the scheduler and the kubelet compute them: the sum of containers and sidecars, or the largest
/// init step if that is more; pod-level requests override it; plus the overhead.
pub fn requests(pod: &Pod) -> ResourceList {
    let mut all = total(pod, |container| requested(container.resources.as_ref()), requested);
    add(&mut all, &overhead(pod));
    all
}

/// The requests of a pod that is on a node, as the scheduler counts it there: while a pod is resized in place, each container and the pod
/// as a whole count with the largest of what is desired, allocated and actually set. A desired size that is infeasible does not count.
pub fn requests_on_node(pod: &Pod) -> ResourceList {
    let status = pod.status.as_ref();
    let effective = |desired: ResourceList, actual: Option<&ResourceRequirements>, allocated| {
        let mut largest = if is_resize_infeasible(pod) { ResourceList::new() } else { desired };
        raise(&mut largest, requested(actual));
        raise(&mut largest, amounts(allocated));
        largest
    };
    let of = |container: &Container| {
        let desired = requested(container.resources.as_ref());
        match resizable_status(pod, container).filter(|found| found.resources.is_some()) {
            Some(found) => effective(desired, found.resources.as_ref(), found.allocated_resources.as_ref()),
            None => desired,
        }
    };
    let whole = |resources: Option<&ResourceRequirements>| {
        let mut desired = requested(resources);
        if let Some(status) = status.filter(|status| status.resources.is_some()) {
            let largest =
                effective(desired.clone(), status.resources.as_ref(), status.allocated_resources.as_ref());
            for (name, amount) in &mut desired {
                *amount = largest.get(name).copied().unwrap_or(Quantity::units(0));
            }
        }
        desired
    };
    let mut all = total(pod, of, whole);
    add(&mut all, &overhead(pod));
    all
}

/// The limits of a pod, computed in the same way. The overhead is added only to resources that have a limit.
pub fn limits(pod: &Pod) -> ResourceList {
    let limits = |resources: Option<&ResourceRequirements>| {
        amounts(resources.and_then(|resources| resources.limits.as_ref()))
    };
    let mut all = total(pod, |container| limits(container.resources.as_ref()), limits);
    let mut overhead = overhead(pod);
    overhead.retain(|name, _| all.get(name).is_some_and(|limit| *limit != Quantity::units(0)));
    add(&mut all, &overhead);
    all
}

fn requested(resources: Option<&ResourceRequirements>) -> ResourceList {
    amounts(resources.and_then(|resources| resources.requests.as_ref()))
}

/// The status of a container that can be resized: not of an init container that ends.
fn resizable_status<'a>(pod: &'a Pod, container: &Container) -> Option<&'a ContainerStatus> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let ends = |init: &Container| init.name == container.name && !is_sidecar(init);
    if spec.init_containers.iter().flatten().any(ends) {
        return None;
    }
    let statuses = [&status.container_statuses, &status.init_container_statuses];
    statuses.into_iter().flatten().flatten().find(|status| status.name == container.name)
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let pending = conditions.iter().find(|condition| condition.type_ == "PodResizePending");
    pending.is_some_and(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

fn overhead(pod: &Pod) -> ResourceList {
    amounts(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()))
}

/// `of` gives the amounts of a container, `whole` those of the pod as a whole.
fn total(
    pod: &Pod,
    of: impl Fn(&Container) -> ResourceList,
    whole: impl Fn(Option<&ResourceRequirements>) -> ResourceList,
) -> ResourceList {
    let Some(spec) = &pod.spec else { return ResourceList::new() };
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
    for (name, amount) in whole(spec.resources.as_ref()) {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cpu(pod: Value, of: fn(&Pod) -> ResourceList) -> i64 {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        of(&pod).get("cpu").map_or(0, |amount| amount.to_milli())
    }

    fn resized(desired: &str, allocated: &str, actual: &str) -> Value {
        json!({
            "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": desired}}}]},
            "status": {"containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}},
            }]},
        })
    }

    #[test]
    fn a_pod_that_is_resized_counts_with_the_largest_of_its_sizes() {
        for (desired, allocated, actual) in [("3", "1", "1"), ("1", "3", "1"), ("1", "1", "3")] {
            assert_eq!(cpu(resized(desired, allocated, actual), requests_on_node), 3000);
        }
        assert_eq!(cpu(resized("1", "3", "2"), requests), 1000, "not on a node yet");
    }

    #[test]
    fn a_size_that_is_infeasible_does_not_count() {
        let mut pod = resized("9", "1", "2");
        pod["status"]["conditions"] =
            json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        assert_eq!(cpu(pod.clone(), requests_on_node), 2000);
        pod["status"]["conditions"][0]["reason"] = json!("Deferred");
        assert_eq!(cpu(pod, requests_on_node), 9000);
    }

    #[test]
    fn a_pod_that_is_resized_as_a_whole_counts_with_the_largest_of_its_sizes() {
        let pod = json!({
            "spec": {
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "8"}}}],
                "resources": {"requests": {"cpu": "1"}}, "overhead": {"cpu": "250m"},
            },
            "status": {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}},
        });
        assert_eq!(cpu(pod, requests_on_node), 3250);
    }

    #[test]
    fn only_an_init_container_that_keeps_running_is_resized() {
        let pod = |policy: Value| {
            let mut pod = resized("1", "1", "1");
            pod["spec"]["initContainers"] =
                json!([{"name": "i", "restartPolicy": policy, "resources": {"requests": {"cpu": "1"}}}]);
            pod["status"]["initContainerStatuses"] = json!([{
                "name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "4"}},
            }]);
            pod
        };
        assert_eq!(cpu(pod(json!("Always")), requests_on_node), 5000);
        assert_eq!(cpu(pod(Value::Null), requests_on_node), 1000);
    }
}
