//! The `/etc/hosts` file of a pod.

use std::{fmt::Write as _, net::IpAddr};

use k8s_openapi::api::core::v1::{HostAlias, Pod};
use vk_provider::Result;

use super::{host_network, hostname, spec};

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOOPBACK: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// The managed hosts file of a pod. With host networking it is based on the host's file `host`.
pub fn hosts(pod: &Pod, cluster_domain: &str, pod_ips: &[IpAddr], host: &str) -> Result<String> {
    let spec = spec(pod)?;
    // As in a kubelet, the name is also validated if it is not written.
    let (name, domain) = hostname(pod, cluster_domain)?;
    let mut content = if host_network(spec) {
        format!("{HOST_NETWORK_HEADER}{host}")
    } else {
        let names = if domain.is_empty() { name } else { format!("{name}.{domain}\t{name}") };
        let entries = pod_ips.iter().fold(String::new(), |mut entries, ip| {
            let _ = writeln!(entries, "{ip}\t{names}");
            entries
        });
        format!("{HEADER}{LOOPBACK}{entries}")
    };
    content.push_str(&aliases(spec.host_aliases.as_deref().unwrap_or_default()));
    Ok(content)
}

/// Whether containers get a hosts file: only if the pod has an address or host networking.
pub fn mounts_hosts(pod: &Pod, pod_ips: &[IpAddr]) -> bool {
    !pod_ips.is_empty() || pod.spec.as_ref().is_some_and(host_network)
}

fn aliases(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut lines = "\n# Entries added by HostAliases.\n".to_owned();
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(lines, "{}\t{names}", alias.ip);
    }
    lines
}

#[cfg(test)]
mod tests;
