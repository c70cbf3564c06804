//! The host ports of a pod.

use k8s_openapi::api::core::v1::Pod;
use vk_provider::requests::is_sidecar;

/// A host port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Port {
    protocol: String,
    address: String,
    number: i32,
}

// === impl Port ===

impl Port {
    /// A port on all addresses is the same port on each of them.
    pub(super) fn clashes(&self, other: &Self) -> bool {
        let everywhere = |port: &Self| port.address == "0.0.0.0";
        self.number == other.number
            && self.protocol == other.protocol
            && (self.address == other.address || everywhere(self) || everywhere(other))
    }
}

/// The host ports of a pod.
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
