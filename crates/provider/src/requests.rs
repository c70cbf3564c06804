//! What a pod claims of a node.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

use crate::quantity::Quantity;

/// Amounts of resources, by name.
pub type Amounts = BTreeMap<String, Quantity>;

/// What a pod requests, as scheduler and kubelet count it: the containers together with the sidecars, or the largest step of
/// the initialisation if that is more; what the pod says as a whole instead of it; and the overhead of its runtime.
pub fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut all = Amounts::new();
    for container in &spec.containers {
        add(&mut all, &of(container.resources.as_ref()));
    }
    let (mut sidecars, mut largest) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of(container.resources.as_ref());
        let mut step = sidecars.clone();
        add(&mut step, &own);
        if is_sidecar(container) {
            add(&mut all, &own);
            sidecars.clone_from(&step);
        }
        raise(&mut largest, step);
    }
    raise(&mut all, largest);
    for (name, amount) in of(spec.resources.as_ref()) {
        if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
            all.insert(name, amount);
        }
    }
    add(&mut all, &amounts(spec.overhead.as_ref()));
    all
}

/// Whether an init container stays beside the others.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Amounts as the API server writes them. What is not written as an amount is left out.
pub fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    // The API server has checked the notation.
    let read = |(name, text): (&String, &ApiQuantity)| Some((name.clone(), text.0.parse().ok()?));
    list.into_iter().flatten().filter_map(read).collect()
}

fn of(resources: Option<&ResourceRequirements>) -> Amounts {
    amounts(resources.and_then(|resources| resources.requests.as_ref()))
}

/// Adds amounts to others.
pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_insert(Quantity::units(0));
        *sum = *sum + *amount;
    }
}

fn raise(to: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let most = to.entry(name).or_insert(amount);
        if *most < amount {
            *most = amount;
        }
    }
}
