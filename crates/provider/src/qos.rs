//! The QoS class of a pod.

use std::collections::BTreeMap;

use crate::quantity::Quantity;
use k8s_openapi::{
    api::core::v1::{Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};

/// The QoS class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qos {
    /// All containers have limits equal to their requests.
    Guaranteed,
    /// It has requests or limits.
    Burstable,
    /// It has neither requests nor limits.
    BestEffort,
}

impl Qos {
    /// The name in the pod status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The QoS class of a pod: from its status, else from its spec.
pub fn qos(pod: &Pod) -> Qos {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => Qos::Guaranteed,
        Some("Burstable") => Qos::Burstable,
        Some("BestEffort") => Qos::BestEffort,
        _ => pod.spec.as_ref().map_or(Qos::BestEffort, by_spec),
    }
}

type ApiResources = BTreeMap<String, ApiQuantity>;

fn by_spec(spec: &PodSpec) -> Qos {
    let none = ResourceRequirements::default();
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    let mut count = |resources: &ResourceRequirements| {
        add(&mut requests, resources.requests.as_ref());
        add(&mut limits, resources.limits.as_ref())
    };
    if let Some(resources) = &spec.resources {
        let found = count(resources);
        // Requests without limits never match them.
        guaranteed = found == 2 || resources.limits.as_ref().is_none_or(BTreeMap::is_empty);
    } else {
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let found = count(container.resources.as_ref().unwrap_or(&none));
            guaranteed &= found == 2;
        }
    }
    if requests.is_empty() && limits.is_empty() {
        Qos::BestEffort
    } else if guaranteed && requests == limits {
        Qos::Guaranteed
    } else {
        Qos::Burstable
    }
}

/// Adds CPU and memory. Returns how many of the two were set.
fn add(sums: &mut BTreeMap<String, Quantity>, amounts: Option<&ApiResources>) -> usize {
    let mut found = 0;
    for name in ["cpu", "memory"] {
        let amount = amounts.and_then(|amounts| amounts.get(name));
        let Some(Ok(amount)) = amount.map(Quantity::try_from) else { continue };
        if amount > Quantity::units(0) {
            let sum = sums.entry(name.to_owned()).or_insert(Quantity::units(0));
            *sum = *sum + amount;
            found += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests;
