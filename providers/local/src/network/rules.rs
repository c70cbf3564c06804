//! The nftables rules of a node: masquerading, forwarding of host ports to pods, and the check of what pods send.

use std::net::{IpAddr, Ipv4Addr};

use vk_pod_engine::backend::{PortMapping, Protocol};

use super::{
    Error, Subnet,
    ipam::Attachment,
    nft::{Chain, Expression, Hook, Match},
};

/// Before connection tracking: packets still have their original destination.
const RAW: i32 = -300;
/// Before everything else that looks at the packets of an interface.
const FIRST: i32 = -500;
const ETHER_IPV4: u16 = 0x0800;
const ETHER_ARP: u16 = 0x0806;
/// Priority of DNAT.
const DESTINATION: i32 = -100;
/// Priority of SNAT.
const SOURCE: i32 = 100;
/// The chain that keeps pods from the host's loopback addresses.
pub(crate) const GUARD: &str = "guard";
/// Addresses that only the host itself may use.
const LOOPBACK: (Ipv4Addr, u8) = (Ipv4Addr::new(127, 0, 0, 0), 8);

/// All chains of the node.
pub(crate) fn chains<'a>(
    bridge: &str,
    subnet: Subnet,
    attached: impl Iterator<Item = &'a Attachment>,
) -> Vec<Chain> {
    let bridge = || bridge.to_owned();
    let ports = redirects(attached);
    let masquerade = |keys: Vec<Vec<Expression>>| [keys.concat(), vec![Expression::Masquerade]].concat();
    let own = Match::Source(subnet);
    let mut outward = vec![
        // To other hosts: masqueraded, because they have no route to a pod.
        masquerade(vec![own.is(), Match::Out(bridge()).is_not()]),
        // To a pod of this bridge through a host port: masqueraded, so that replies take the same way back, even if it
        // is the same pod.
        masquerade(vec![own.is(), Match::Out(bridge()).is(), Match::Redirected.is()]),
    ];
    let mut guard = Vec::new();
    if let Some(loopback) = Subnet::around(LOOPBACK.0, LOOPBACK.1) {
        // From 127.0.0.1 through a host port: masqueraded, because the pod would reply to its own loopback.
        outward.push(masquerade(vec![Match::Source(loopback).is(), Match::Out(bridge()).is()]));
        // The rule above needs `route_localnet` on the bridge; pods must not use it to reach the host's loopback.
        for end in [Match::Destination(loopback), Match::Source(loopback)] {
            guard.push([Match::In(bridge()).is(), end.is(), vec![Expression::Drop]].concat());
        }
    }
    vec![
        Chain { name: GUARD, kind: "filter", hook: Hook::Prerouting, priority: RAW, rules: guard },
        Chain {
            name: "ports",
            kind: "nat",
            hook: Hook::Prerouting,
            priority: DESTINATION,
            rules: ports.clone(),
        },
        Chain { name: "ports-of-host", kind: "nat", hook: Hook::Output, priority: DESTINATION, rules: ports },
        Chain { name: "outward", kind: "nat", hook: Hook::Postrouting, priority: SOURCE, rules: outward },
    ]
}

/// The rules of the host's end of a pod's veth pair: the pod can only send as itself, and only IPv4. They also keep it
/// from the host's loopback addresses.
pub(crate) fn source_check(interface: &str, address: Ipv4Addr, mac_address: [u8; 6]) -> Chain {
    let drop = |keys: &[Vec<Expression>]| [keys.concat(), vec![Expression::Drop]].concat();
    let (ipv4, arp) = (Match::EtherType(ETHER_IPV4), Match::EtherType(ETHER_ARP));
    let mut rules = vec![
        drop(&[Match::SourceMac(mac_address).is_not()]),
        drop(&[arp.is(), Match::ArpSenderMac(mac_address).is_not()]),
        drop(&[arp.is(), Match::ArpSender(address).is_not()]),
        drop(&[ipv4.is_not(), arp.is_not()]),
    ];
    if let Some(own) = Subnet::around(address, 32) {
        rules.push(drop(&[ipv4.is(), Match::Source(own).is_not()]));
    }
    if let Some(loopback) = Subnet::around(LOOPBACK.0, LOOPBACK.1) {
        rules.push(drop(&[ipv4.is(), Match::Destination(loopback).is()]));
    }
    let hook = Hook::Ingress(interface.to_owned());
    Chain { name: "source-check", kind: "filter", hook, priority: FIRST, rules }
}

/// The host ports of a sandbox, or an error if one cannot be forwarded.
pub(crate) fn ports(ports: &[PortMapping], nat_error: Option<&str>) -> Result<Vec<PortMapping>, Error> {
    let ports: Vec<_> = ports.iter().filter(|port| port.host_port != 0).cloned().collect();
    for port in &ports {
        if let Some(why) = nat_error {
            return Err(Error::HostPort { port: port.host_port, why: why.to_owned() });
        }
        host_address(port)?;
    }
    Ok(ports)
}

/// The host address that a port is bound to; `None` means all.
fn host_address(port: &PortMapping) -> Result<Option<Ipv4Addr>, Error> {
    let wrong = |why: String| Error::HostPort { port: port.host_port, why };
    if port.host_ip.is_empty() {
        return Ok(None);
    }
    match port.host_ip.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => Ok(None),
        Ok(IpAddr::V4(address)) => Ok(Some(address)),
        Ok(IpAddr::V6(address)) => {
            Err(wrong(format!("hostIP {address} is an IPv6 address, but pods only have IPv4 addresses here")))
        }
        Err(_) => Err(wrong(format!("hostIP {:?} is not an address", port.host_ip))),
    }
}

/// A rule per port: those with a host address first, and the newer pod first if two have the same port.
fn redirects<'a>(attached: impl Iterator<Item = &'a Attachment>) -> Vec<Vec<Expression>> {
    let mut ports: Vec<_> = attached
        .flat_map(|attached| attached.ports.iter().map(move |port| (attached, port)))
        .filter_map(|(attached, port)| Some((host_address(port).ok()?, attached, port)))
        .collect();
    ports.sort_by_key(|(address, attached, _)| (address.is_none(), std::cmp::Reverse(attached.serial)));
    ports.into_iter().map(|(address, attached, port)| redirect(address, attached.address, port)).collect()
}

fn redirect(host: Option<Ipv4Addr>, pod: Ipv4Addr, port: &PortMapping) -> Vec<Expression> {
    let place = match host.and_then(|host| Subnet::around(host, 32)) {
        Some(host) => Match::Destination(host),
        None => Match::LocalBackend,
    };
    [
        Match::Protocol(number(port.protocol)).is(),
        place.is(),
        Match::Port(port.host_port).is(),
        Expression::redirect(pod, port.container_port),
    ]
    .concat()
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(host_ip: &str, host_port: u16) -> PortMapping {
        PortMapping { protocol: Protocol::Tcp, container_port: 80, host_port, host_ip: host_ip.to_owned() }
    }

    fn attached(serial: u64, ports: Vec<PortMapping>) -> Attachment {
        let address = Ipv4Addr::new(10, 0, 0, u8::try_from(serial).unwrap());
        Attachment { sandbox: serial.to_string(), address, serial, ports }
    }

    #[test]
    fn packets_of_pods_from_or_to_loopback_addresses_are_dropped() {
        let subnet = Subnet::around(Ipv4Addr::new(10, 0, 0, 0), 24).unwrap();
        let chains = chains("br", subnet, std::iter::empty());
        let guard = chains.iter().find(|chain| chain.name == "guard").unwrap();
        let loopback = Subnet::around(LOOPBACK.0, LOOPBACK.1).unwrap();
        for end in [Match::Destination(loopback), Match::Source(loopback)] {
            let rule = [Match::In("br".to_owned()).is(), end.is(), vec![Expression::Drop]].concat();
            assert!(guard.rules.contains(&rule), "{rule:?}");
        }
        assert_eq!((guard.kind, &guard.hook, guard.priority), ("filter", &Hook::Prerouting, RAW));
    }

    #[test]
    fn a_pod_can_only_send_as_itself() {
        let (address, mac) = (Ipv4Addr::new(10, 0, 0, 2), [0x0a, 0x58, 10, 0, 0, 2]);
        let chain = source_check("ve0", address, mac);
        let own = Subnet::around(address, 32).unwrap();
        let ipv4 = || Match::EtherType(ETHER_IPV4);
        for rule in [
            [Match::SourceMac(mac).is_not(), vec![Expression::Drop]].concat(),
            [ipv4().is(), Match::Source(own).is_not(), vec![Expression::Drop]].concat(),
            [ipv4().is_not(), Match::EtherType(ETHER_ARP).is_not(), vec![Expression::Drop]].concat(),
        ] {
            assert!(chain.rules.contains(&rule), "{rule:?}");
        }
        assert_eq!((chain.rules.len(), chain.hook), (6, Hook::Ingress("ve0".to_owned())));
    }

    #[test]
    fn ports_without_a_host_port_are_ignored() {
        assert_eq!(ports(&[port("", 0)], Some("no nftables")).unwrap(), []);
    }

    #[test]
    fn a_port_that_cannot_be_forwarded_is_rejected_with_the_reason() {
        let error = |wanted: PortMapping, nat_error| ports(&[wanted], nat_error).unwrap_err().to_string();
        assert_eq!(
            error(port("", 80), Some("the kernel has no nftables")),
            "host port 80: the kernel has no nftables"
        );
        assert_eq!(error(port("here", 80), None), "host port 80: hostIP \"here\" is not an address");
        assert_eq!(
            error(port("fd00::1", 80), None),
            "host port 80: hostIP fd00::1 is an IPv6 address, but pods only have IPv4 addresses here"
        );
        assert!(ports(&[port("::", 80), port("0.0.0.0", 81), port("127.0.0.1", 82)], None).is_ok());
    }

    #[test]
    fn ports_with_a_host_address_and_newer_pods_come_first() {
        let pods = [
            attached(1, vec![port("", 80)]),
            attached(2, vec![port("", 80)]),
            attached(3, vec![port("192.0.2.1", 80)]),
        ];
        let mut rules = redirects(pods.iter());
        let last = |rule: Vec<Expression>| {
            rule.into_iter().find_map(|step| match step {
                Expression::Load { register: 1, value } => Some(value[3]),
                _ => None,
            })
        };
        let order: Vec<_> = rules.drain(..).filter_map(last).collect();
        assert_eq!(order, [3, 2, 1]);
    }

    #[test]
    fn ports_are_forwarded_for_other_hosts_and_for_the_host_itself() {
        let pods = [attached(1, vec![port("", 80)])];
        let chains = chains("vk0", "10.0.0.0/24".parse().unwrap(), pods.iter());
        let rules = |hook: Hook, kind: &str| {
            chains.iter().find(|c| c.hook == hook && c.kind == kind).unwrap().rules.len()
        };
        assert_eq!((rules(Hook::Prerouting, "nat"), rules(Hook::Output, "nat")), (1, 1));
        assert_eq!((rules(Hook::Prerouting, "filter"), rules(Hook::Postrouting, "nat")), (2, 3));
    }
}
