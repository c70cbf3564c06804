//! What a pod claims of the node.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use vk_provider::Quantity;

type Amounts = BTreeMap<String, Quantity>;

/// A port of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Port {
    protocol: String,
    address: String,
    number: i32,
}

// === impl Port ===

impl Port {
    /// A port on all addresses is the same port on each.
    pub(super) fn clashes(&self, other: &Self) -> bool {
        let everywhere = |port: &Self| port.address == "0.0.0.0";
        self.number == other.number
            && self.protocol == other.protocol
            && (self.address == other.address || everywhere(self) || everywhere(other))
    }
}

/// The ports of the machine that a pod takes.
pub(super) fn ports(pod: &Pod) -> Vec<Port> {
    let spec = pod.spec.as_ref();
    let sidecars = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let containers = sidecars.iter().filter(|one| is_sidecar(one)).chain(regular);
    let ports = containers.flat_map(|one| one.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let filled = |text: &Option<String>, default: &str| {
                text.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
            };
            Some(Port {
                number: port.host_port.filter(|number| *number > 0)?,
                protocol: filled(&port.protocol, "TCP"),
                address: filled(&port.host_ip, "0.0.0.0"),
            })
        })
        .collect()
}

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

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn of(resources: Option<&ResourceRequirements>) -> Amounts {
    amounts(resources.and_then(|resources| resources.requests.as_ref()))
}

fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    // The API server has checked the notation.
    let read = |(name, text): (&String, &ApiQuantity)| Some((name.clone(), text.0.parse().ok()?));
    list.into_iter().flatten().filter_map(read).collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
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
