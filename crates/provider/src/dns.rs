//! DNS configuration of a pod, by the rules of a kubelet.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfigOption, PodSpec};
use serde::{Deserialize, Serialize};

use crate::pod::{EventKind, full_name};

/// Limits of resolvers.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LINE: usize = 2048;
const MAX_DOMAIN: usize = 253;

/// DNS configuration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options, such as `ndots:5`.
    pub options: Vec<String>,
}

/// The DNS of the node and its cluster.
#[derive(Clone, Copy, Debug)]
pub struct NodeDns<'a> {
    /// Name servers of the cluster; empty if there are none.
    pub cluster_servers: &'a [IpAddr],
    /// The cluster's domain, such as `cluster.local`; may be empty.
    pub cluster_domain: &'a str,
    /// The resolver configuration of the host; `None` if pods do not get it.
    pub host: Option<&'a Dns>,
    /// The node's addresses, primary first: without the host's configuration, pods get a loopback server of each family.
    pub node_ips: &'a [IpAddr],
}

/// Records an event of a pod: kind, reason and message.
pub type RecordEvent<'a> = &'a dyn Fn(EventKind, &str, String);

// === impl Dns ===

impl Dns {
    /// Parses a resolv.conf: all servers, the last search line, and the last option of each name. The error says what is wrong.
    pub fn parse(content: &str) -> Result<Self, String> {
        let mut dns = Self::default();
        let mut wrong = None;
        for line in content.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => match words.next() {
                    Some(server) => dns.servers.push(server.to_owned()),
                    None => wrong = Some("nameserver list is empty ".to_owned()),
                },
                Some("search") => {
                    let domains = words.filter(|domain| *domain != ".");
                    dns.searches =
                        domains.map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned()).collect();
                }
                Some("options") => words.for_each(|option| set_option(&mut dns.options, option.to_owned())),
                _ => {}
            }
        }
        wrong.map_or(Ok(dns), Err)
    }
}

/// The DNS configuration of a pod, from its `dnsPolicy` and `dnsConfig`. What a kubelet warns of is recorded.
pub fn pod_dns(pod: &Pod, spec: &PodSpec, node: &NodeDns<'_>, record: RecordEvent<'_>) -> Dns {
    let host = node.host.cloned().unwrap_or_default();
    let cluster = match spec.dns_policy.as_deref() {
        Some("None") => return finish(Dns::default(), spec, record),
        Some("Default") => false,
        Some("ClusterFirst") | None => spec.host_network != Some(true),
        // `ClusterFirstWithHostNet`, and policies of newer API servers.
        Some(_) => true,
    };
    if cluster && !node.cluster_servers.is_empty() {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let domain = node.cluster_domain;
        let mut searches = if domain.is_empty() {
            Vec::new()
        } else {
            vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()]
        };
        searches.extend(host.searches);
        if !domain.is_empty() {
            deduplicate(&mut searches);
        }
        let servers = node.cluster_servers.iter().map(ToString::to_string).collect();
        return finish(Dns { servers, searches, options: vec!["ndots:5".to_owned()] }, spec, record);
    }
    if cluster {
        let message = format!(
            "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
             Falling back to \"Default\" policy.",
            full_name(pod)
        );
        record(EventKind::Warning, "MissingClusterDNS", message);
    }
    let mut dns = host;
    if node.host.is_none() {
        // An empty configuration would make a runtime use the host's.
        let local = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
        dns.servers.extend(node.node_ips.iter().map(local));
        if dns.servers.is_empty() {
            dns.servers.push("127.0.0.1".to_owned());
        }
        dns.searches = vec![".".to_owned()];
    }
    finish(dns, spec, record)
}

/// Adds the pod's `dnsConfig` and applies the limits.
fn finish(mut dns: Dns, spec: &PodSpec, record: RecordEvent<'_>) -> Dns {
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        deduplicate(&mut dns.servers);
        dns.searches.extend(own.searches.iter().flatten().cloned());
        deduplicate(&mut dns.searches);
        for PodDNSConfigOption { name, value } in own.options.iter().flatten() {
            let name = name.clone().unwrap_or_default();
            let value = value.as_deref().filter(|value| !value.is_empty());
            set_option(
                &mut dns.options,
                value.map_or_else(|| name.clone(), |value| format!("{name}:{value}")),
            );
        }
    }
    if dns.servers.len() > MAX_SERVERS {
        dns.servers.truncate(MAX_SERVERS);
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            dns.servers.join(" ")
        );
        record(EventKind::Warning, "DNSConfigForming", message);
    }
    if limit_searches(&mut dns.searches) {
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            dns.searches.join(" ")
        );
        record(EventKind::Warning, "DNSConfigForming", message);
    }
    dns
}

/// Applies the limits to the search domains. Returns whether any was removed.
fn limit_searches(searches: &mut Vec<String>) -> bool {
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    // Some resolvers abort on longer domains.
    searches.retain(|domain| domain.len() <= MAX_DOMAIN);
    let line = |searches: &[String]| searches.iter().map(|domain| domain.len() + 1).sum::<usize>();
    while line(searches) > MAX_SEARCH_LINE + 1 {
        searches.pop();
    }
    searches.len() != before
}

/// Sets an option, replacing one of the same name.
fn set_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split_once(':').map_or(option, |(name, _)| name).to_owned();
    match options.iter_mut().find(|other| name(other) == name(&option)) {
        Some(other) => *other = option,
        None => options.push(option),
    }
}

fn deduplicate(list: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

#[cfg(test)]
mod tests;
