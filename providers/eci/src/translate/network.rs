//! Names and name servers.

use std::cell::RefCell;

use k8s_openapi::api::core::v1::PodSpec;
use vk_container_group::{backend::ResolvedPod, plan::Diagnostics};
use vk_provider::dns::{Dns, NodeDns, pod_dns};

use super::Translator;
use crate::api::{Parameters, flatten};

/// The name servers of every VPC: what groups with the policy `Default` use.
const VPC_SERVERS: [&str; 2] = ["100.100.2.136", "100.100.2.138"];
/// The longest host name.
const LONGEST_HOST: usize = 63;

/// Writes the names of the pod, and how it resolves others.
pub(super) fn write(
    translator: &Translator,
    pod: &ResolvedPod,
    spec: &PodSpec,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let name = spec.hostname_override.as_ref().or(spec.hostname.as_ref()).or(pod.pod.metadata.name.as_ref());
    // As a kubelet cuts the names of pods.
    let name = name.map(|name| name.chars().take(LONGEST_HOST).collect::<String>());
    out.set_some("HostName", name.map(|name| name.trim_end_matches(['-', '.']).to_owned()));
    for (at, alias) in spec.host_aliases.iter().flatten().enumerate() {
        out.set(flatten("HostAliase", at, "Ip"), &alias.ip);
        out.set_list(&flatten("HostAliase", at, "Hostname"), alias.hostnames.iter().flatten());
    }
    dns(translator, pod, spec, out, diagnostics);
}

fn dns(
    translator: &Translator,
    pod: &ResolvedPod,
    spec: &PodSpec,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    let warnings = RefCell::new(Vec::new());
    let host = Dns { servers: VPC_SERVERS.map(str::to_owned).to_vec(), ..Dns::default() };
    let node = NodeDns {
        cluster_servers: &translator.cluster_dns,
        cluster_domain: &translator.cluster_domain,
        host: Some(&host),
        node_ips: &[],
    };
    let dns = pod_dns(&pod.pod, spec, &node, &|_, _, message| warnings.borrow_mut().push(message));
    for message in warnings.into_inner() {
        diagnostics.warn("spec.dnsPolicy", message);
    }
    // The service knows two policies: its own servers, and those that are given.
    if dns == host {
        out.set("DnsPolicy", "Default");
        return;
    }
    out.set("DnsPolicy", "None");
    out.set_list("DnsConfig.NameServer", &dns.servers);
    out.set_list("DnsConfig.Search", &dns.searches);
    for (at, option) in dns.options.iter().enumerate() {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        out.set(flatten("DnsConfig.Option", at, "Name"), name);
        if !value.is_empty() {
            out.set(flatten("DnsConfig.Option", at, "Value"), value);
        }
    }
}
