//! The host ports of pods.

use k8s_openapi::api::core::v1::Pod;

use crate::requests::is_sidecar;

/// The address that stands for all addresses of the host.
const ALL_ADDRESSES: &str = "0.0.0.0";

/// A port of the host that a container uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    protocol: String,
    address: String,
    number: i32,
}

// === impl HostPort ===

impl HostPort {
    /// The number of the port.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Whether two pods of one host cannot have these ports at the same time: a port on all addresses is the same port on each of them.
    pub fn conflicts(&self, other: &Self) -> bool {
        let everywhere = |port: &Self| port.address == ALL_ADDRESSES;
        self.number == other.number
            && self.protocol == other.protocol
            && (self.address == other.address || everywhere(self) || everywhere(other))
    }
}

/// The host ports of a pod: those of its containers and sidecars, which are open as long as the pod runs.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
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
            Some(HostPort {
                number: port.host_port.filter(|number| *number > 0)?,
                protocol: filled(&port.protocol, "TCP"),
                address: filled(&port.host_ip, ALL_ADDRESSES),
            })
        })
        .collect()
}
