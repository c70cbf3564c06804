//! Sandboxes, and lists of sandboxes and containers.

use std::{collections::HashMap, net::IpAddr};

use vk_pod_engine::{
    backend::{ContainerEntry, Listing, PortMapping, Protocol, SandboxConfig, SandboxEntry},
    snapshot::{Sandbox, SandboxState},
};
use vk_provider::{PodRef, Result};

use super::{
    container::state,
    pod_from_labels, pod_of,
    security::{resources, sandbox_security},
    time,
};
use crate::{error, proto};

pub(crate) fn sandbox_config(config: &SandboxConfig) -> proto::PodSandboxConfig {
    let linux = proto::LinuxPodSandboxConfig {
        cgroup_parent: config.cgroup_parent.clone(),
        security_context: Some(sandbox_security(&config.security)),
        sysctls: config.sysctls.clone(),
        overhead: config.overhead.as_ref().map(resources),
        resources: config.resources.as_ref().map(resources),
    };
    let dns = config.dns.as_ref().map(|dns| proto::DnsConfig {
        servers: dns.servers.clone(),
        searches: dns.searches.clone(),
        options: dns.options.clone(),
    });
    let metadata = proto::PodSandboxMetadata {
        name: config.pod.name.to_string(),
        uid: config.pod.uid.to_string(),
        namespace: config.pod.namespace.to_string(),
        attempt: config.attempt,
    };
    proto::PodSandboxConfig {
        metadata: Some(metadata),
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.clone(),
        dns_config: dns,
        port_mappings: config.ports.iter().map(port).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(linux),
    }
}

fn port(port: &PortMapping) -> proto::PortMapping {
    let protocol = match port.protocol {
        Protocol::Tcp => proto::Protocol::Tcp,
        Protocol::Udp => proto::Protocol::Udp,
        Protocol::Sctp => proto::Protocol::Sctp,
    };
    proto::PortMapping {
        protocol: protocol.into(),
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.clone(),
    }
}

pub(crate) fn sandbox(status: proto::PodSandboxStatus) -> Result<Sandbox> {
    if status.id.is_empty() {
        return Err(error::missing_field("PodSandboxStatus", "id"));
    }
    let state = readiness(status.state());
    let metadata = status.metadata.ok_or_else(|| error::missing_field("PodSandboxStatus", "metadata"))?;
    let options = status.linux.and_then(|linux| linux.namespaces).and_then(|namespaces| namespaces.options);
    Ok(Sandbox {
        state,
        id: status.id,
        attempt: metadata.attempt,
        created: time(status.created_at),
        ips: status.network.map(addresses).unwrap_or_default(),
        host_network: options.is_some_and(|options| options.network() == proto::NamespaceMode::Node),
        handler: status.runtime_handler,
        labels: status.labels,
        annotations: status.annotations,
    })
}

/// All addresses or none, as in a kubelet: if one is invalid, the primary one is not known.
fn addresses(network: proto::PodSandboxNetworkStatus) -> Vec<IpAddr> {
    let primary = Some(network.ip).filter(|ip| !ip.is_empty());
    let others = network.additional_ips.into_iter().map(|other| other.ip);
    let read: Result<Vec<IpAddr>, _> = primary.into_iter().chain(others).map(|ip| ip.parse()).collect();
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "the runtime reported an invalid address");
        Vec::new()
    })
}

fn readiness(state: proto::PodSandboxState) -> SandboxState {
    match state {
        proto::PodSandboxState::SandboxReady => SandboxState::Ready,
        proto::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    }
}

/// The lists, without objects that belong to no pod.
pub(crate) fn listing(sandboxes: Vec<proto::PodSandbox>, containers: Vec<proto::Container>) -> Listing {
    let mut pods: HashMap<String, PodRef> = HashMap::new();
    let mut listing = Listing::default();
    for sandbox in sandboxes {
        let state = readiness(sandbox.state());
        let Some(pod) = pod_of(&sandbox.labels, sandbox.metadata.as_ref()) else { continue };
        let attempt = sandbox.metadata.map_or(0, |metadata| metadata.attempt);
        pods.insert(sandbox.id.clone(), pod.clone());
        listing.sandboxes.push(SandboxEntry { id: sandbox.id, pod, state, attempt });
    }
    for container in containers {
        let state = state(container.state());
        let known =
            pod_from_labels(&container.labels).or_else(|| pods.get(&container.pod_sandbox_id).cloned());
        let (Some(pod), Some(metadata)) = (known, container.metadata) else { continue };
        listing.containers.push(ContainerEntry {
            id: container.id,
            pod,
            sandbox: container.pod_sandbox_id,
            name: metadata.name,
            state,
            attempt: metadata.attempt,
        });
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(ip: &str, others: &[&str]) -> proto::PodSandboxNetworkStatus {
        let additional_ips = others.iter().map(|ip| proto::PodIp { ip: (*ip).to_owned() }).collect();
        proto::PodSandboxNetworkStatus { ip: ip.to_owned(), additional_ips }
    }

    #[test]
    fn addresses_come_primary_first_and_all_or_none() {
        let both: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(addresses(network("10.0.0.1", &["fd00::1"])), both);
        assert!(addresses(network("", &[])).is_empty(), "the host's network");
        assert!(addresses(network("10.0.0.1", &["nonsense"])).is_empty());
    }

    #[test]
    fn a_container_without_labels_belongs_to_its_sandboxs_pod() {
        let metadata = proto::PodSandboxMetadata {
            name: "hand".into(),
            namespace: "default".into(),
            uid: "u".into(),
            attempt: 2,
        };
        let sandbox =
            proto::PodSandbox { id: "s".into(), metadata: Some(metadata), ..proto::PodSandbox::default() };
        let metadata = proto::ContainerMetadata { name: "c".into(), attempt: 1 };
        let container = |sandbox: &str| proto::Container {
            id: format!("c-{sandbox}"),
            pod_sandbox_id: sandbox.into(),
            metadata: Some(metadata.clone()),
            ..proto::Container::default()
        };
        let listing = listing(vec![sandbox], vec![container("s"), container("unknown")]);
        assert_eq!(listing.sandboxes[0].attempt, 2);
        assert_eq!(listing.containers.len(), 1, "one of an unknown sandbox is nobody's");
        assert_eq!(listing.containers[0].pod, PodRef::new("default", "hand", "u"));
    }

    #[test]
    fn an_answer_without_an_id_or_a_name_is_refused() {
        let nameless = proto::PodSandboxStatus { id: "s".into(), ..proto::PodSandboxStatus::default() };
        assert!(sandbox(nameless).unwrap_err().message().contains("metadata"));
        assert!(sandbox(proto::PodSandboxStatus::default()).unwrap_err().message().contains("no id"));
    }
}
