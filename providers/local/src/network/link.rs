//! Links, addresses and routes of a network namespace.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, BorrowedFd},
    thread,
    time::Duration,
};

use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::io::Errno;

use super::{
    Subnet,
    netlink::{self, ACK, CREATE, EXCLUSIVE, NetlinkMessage, NetlinkReply, NetlinkSocket},
};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;

/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// `struct ifaddrmsg`.
const ADDRESS_HEADER: usize = 8;
/// `struct rtmsg`.
const ROUTE_HEADER: usize = 12;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_PORT_KIND: u16 = 4;
const IFLA_INFO_PORT_DATA: u16 = 5;
const IFLA_BRPORT_STATE: u16 = 1;
const IFLA_BRPORT_HAIRPIN: u16 = 4;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DESTINATION: u16 = 1;
const RTA_OUT: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const AF_INET: u8 = 2;
const IFF_UP: u32 = 1;
/// `IF_OPER_UP`.
const OPERATING: u8 = 6;
/// `BR_STATE_FORWARDING`.
const FORWARDING: u8 = 3;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const TYPE_UNICAST: u8 = 1;

/// How often, and at which interval, a link is checked until it is up: ten seconds in all.
const READY_CHECKS: usize = 5000;
const READY_POLL: Duration = Duration::from_millis(2);

/// The index of the loopback interface in every namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// A route netlink socket, in the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct RouteSocket(NetlinkSocket);

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkLink {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// `bridge`, `veth`; empty for hardware.
    pub(crate) kind: String,
    pub(crate) mac_address: Vec<u8>,
    pub(crate) mtu: u32,
    /// Index of the bridge that it is a port of.
    pub(crate) master: Option<u32>,
    /// Whether packets pass: it is up, it has a carrier and, as a bridge port, it is in state forwarding.
    pub(crate) ready: bool,
    pub(crate) counters: LinkCounters,
}

/// Traffic counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounters {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) receive_errors: u64,
    pub(crate) send_errors: u64,
}

/// A subnet that the host has an address in, or a route to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownSubnet {
    pub(crate) subnet: Subnet,
    /// Index of the interface.
    pub(crate) link: Option<u32>,
}

/// A veth pair to create.
pub(crate) struct VethPair<'a> {
    /// Name of the host's end.
    pub(crate) name: &'a str,
    pub(crate) bridge: u32,
    pub(crate) mtu: u32,
    /// Name of the pod's end.
    pub(crate) peer: &'a str,
    pub(crate) mac_address: [u8; 6],
    pub(crate) namespace: BorrowedFd<'a>,
}

// === impl RouteSocket ===

impl RouteSocket {
    pub(crate) fn open() -> io::Result<Self> {
        NetlinkSocket::open(NETLINK_ROUTE).map(Self)
    }

    /// The link with this name.
    pub(crate) fn link(&self, name: &str) -> io::Result<Option<NetworkLink>> {
        let message = NetlinkMessage::new(GET_LINK, 0, &[0; LINK_HEADER]).with(|a| {
            a.text(IFLA_IFNAME, name);
        });
        match self.0.request(message) {
            Ok(replies) => Ok(replies.iter().find_map(link)),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All links.
    pub(crate) fn links(&self) -> io::Result<Vec<NetworkLink>> {
        Ok(self
            .0
            .dump(NetlinkMessage::new(GET_LINK, 0, &[0; LINK_HEADER]))?
            .iter()
            .filter_map(link)
            .collect())
    }

    /// Creates a bridge. It gets a fixed MAC address, because otherwise it takes the lowest one of its ports, which
    /// changes.
    pub(crate) fn add_bridge(&self, name: &str, mac_address: [u8; 6], mtu: u32) -> io::Result<()> {
        self.0.call(NetlinkMessage::new(NEW_LINK, CREATE | EXCLUSIVE, &link_header(0, true)).with(|a| {
            a.text(IFLA_IFNAME, name).bytes(IFLA_ADDRESS, &mac_address).native(IFLA_MTU, mtu).nest(
                IFLA_LINKINFO,
                |info| {
                    info.text(IFLA_INFO_KIND, "bridge");
                },
            );
        }))
    }

    /// Creates a veth pair with one end as a bridge port and the other in the pod. The pod's end is still down: the
    /// kernel cannot set it up before its peer exists.
    pub(crate) fn add_veth(&self, pair: &VethPair<'_>) -> io::Result<()> {
        let namespace = pair.namespace.as_raw_fd().cast_unsigned();
        self.0.call(NetlinkMessage::new(NEW_LINK, CREATE | EXCLUSIVE, &link_header(0, true)).with(|a| {
            a.text(IFLA_IFNAME, pair.name).native(IFLA_MTU, pair.mtu).native(IFLA_MASTER, pair.bridge).nest(
                IFLA_LINKINFO,
                |info| {
                    info.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                        data.nest_with_header(VETH_INFO_PEER, &link_header(0, false), |peer| {
                            peer.text(IFLA_IFNAME, pair.peer)
                                .bytes(IFLA_ADDRESS, &pair.mac_address)
                                .native(IFLA_MTU, pair.mtu)
                                .native(IFLA_NET_NS_FD, namespace);
                        });
                    });
                },
            );
        }))
    }

    /// Sets hairpin mode on a bridge port, for pods that connect to themselves through a host port.
    pub(crate) fn hairpin(&self, index: u32) -> io::Result<()> {
        self.0.call(NetlinkMessage::new(NEW_LINK, ACK, &link_header(index, true)).with(|a| {
            a.nest(IFLA_LINKINFO, |info| {
                info.text(IFLA_INFO_PORT_KIND, "bridge").nest(IFLA_INFO_PORT_DATA, |data| {
                    data.bytes(IFLA_BRPORT_HAIRPIN, &[1]);
                });
            });
        }))
    }

    /// Sets a link up.
    pub(crate) fn set_up(&self, index: u32) -> io::Result<()> {
        self.0.call(NetlinkMessage::new(NEW_LINK, ACK, &link_header(index, true)))
    }

    /// Changes the MAC address of a link.
    #[cfg(test)]
    pub(crate) fn set_mac_address(&self, index: u32, mac_address: [u8; 6]) -> io::Result<()> {
        self.0.call(NetlinkMessage::new(NEW_LINK, ACK, &link_header(index, false)).with(|a| {
            a.bytes(IFLA_ADDRESS, &mac_address);
        }))
    }

    /// Waits until packets pass through a link. The kernel brings it up asynchronously and drops packets until then.
    pub(crate) fn wait_until_ready(&self, name: &str) -> io::Result<()> {
        for _ in 0..READY_CHECKS {
            if self.link(name)?.is_some_and(|link| link.ready) {
                return Ok(());
            }
            thread::sleep(READY_POLL);
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("link {name} does not come up")))
    }

    /// Removes a link; it may be gone already.
    pub(crate) fn delete(&self, index: u32) -> io::Result<()> {
        ignore(self.0.call(NetlinkMessage::new(DELETE_LINK, ACK, &link_header(index, false))), Errno::NODEV)
    }

    /// The IPv4 addresses of the host, or of one link.
    pub(crate) fn addresses(&self, of: Option<u32>) -> io::Result<Vec<(Ipv4Addr, KnownSubnet)>> {
        let mut header = [0; ADDRESS_HEADER];
        header[0] = AF_INET;
        let replies = self.0.dump(NetlinkMessage::new(GET_ADDRESS, 0, &header))?;
        Ok(replies
            .iter()
            .filter_map(address)
            .filter(|(_, known)| of.is_none_or(|of| known.link == Some(of)))
            .collect())
    }

    /// Adds an address to a link; it may exist already.
    pub(crate) fn add_address(&self, index: u32, address: Ipv4Addr, subnet: Subnet) -> io::Result<()> {
        let mut header = [AF_INET, subnet.prefix(), 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        let message = NetlinkMessage::new(NEW_ADDRESS, CREATE | EXCLUSIVE, &header).with(|a| {
            a.bytes(IFA_LOCAL, &address.octets()).bytes(IFA_ADDRESS, &address.octets());
        });
        ignore(self.0.call(message), Errno::EXIST)
    }

    /// The IPv4 routes of all tables, without default routes.
    pub(crate) fn routes(&self) -> io::Result<Vec<KnownSubnet>> {
        Ok(self.route_list()?.iter().filter_map(|(known, _)| *known).collect())
    }

    /// The link of the default route.
    pub(crate) fn default_link(&self) -> io::Result<Option<u32>> {
        Ok(self.route_list()?.iter().find_map(|(known, link)| if known.is_none() { *link } else { None }))
    }

    /// Adds a default route; it may exist already.
    pub(crate) fn add_default(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let header = [AF_INET, 0, 0, 0, TABLE_MAIN, PROTOCOL_STATIC, 0, TYPE_UNICAST, 0, 0, 0, 0];
        let message = NetlinkMessage::new(NEW_ROUTE, CREATE | EXCLUSIVE, &header).with(|a| {
            a.bytes(RTA_GATEWAY, &gateway.octets()).native(RTA_OUT, index);
        });
        ignore(self.0.call(message), Errno::EXIST)
    }

    fn route_list(&self) -> io::Result<Vec<(Option<KnownSubnet>, Option<u32>)>> {
        let mut header = [0; ROUTE_HEADER];
        header[0] = AF_INET;
        let replies = self.0.dump(NetlinkMessage::new(GET_ROUTE, 0, &header))?;
        Ok(replies.iter().filter_map(route).collect())
    }
}

/// `struct ifinfomsg`, optionally with the flag `IFF_UP`.
fn link_header(index: u32, up: bool) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    if up {
        header[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
        header[12..].copy_from_slice(&IFF_UP.to_ne_bytes());
    }
    header
}

fn ignore(result: io::Result<()>, errno: Errno) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(errno.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn link(reply: &NetlinkReply) -> Option<NetworkLink> {
    if reply.kind != NEW_LINK {
        return None;
    }
    let mut link = NetworkLink { index: reply.native(4)?, ..NetworkLink::default() };
    let (mut operating, mut forwarding) = (false, true);
    for (kind, value) in reply.attributes(LINK_HEADER) {
        match kind {
            IFLA_IFNAME => link.name = netlink::text(value),
            IFLA_ADDRESS => link.mac_address = value.to_vec(),
            IFLA_MTU => link.mtu = netlink::native(value)?,
            IFLA_MASTER => link.master = netlink::native(value),
            IFLA_OPERSTATE => operating = value == [OPERATING],
            IFLA_STATS64 => link.counters = counters(value),
            IFLA_LINKINFO => {
                for (kind, value) in netlink::attributes(value) {
                    match kind {
                        IFLA_INFO_KIND => link.kind = netlink::text(value),
                        IFLA_INFO_PORT_DATA => forwarding = port_forwards(value),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    link.ready = operating && forwarding;
    Some(link)
}

/// Whether the data of a bridge port has state forwarding.
fn port_forwards(data: &[u8]) -> bool {
    netlink::attributes(data).any(|(kind, value)| kind == IFLA_BRPORT_STATE && value == [FORWARDING])
}

/// `struct rtnl_link_stats64`: packets, bytes and errors, each received and sent, and more.
fn counters(value: &[u8]) -> LinkCounters {
    let at = |place: usize| {
        let bytes = value.get(place * 8..place * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    LinkCounters { received_bytes: at(2), sent_bytes: at(3), receive_errors: at(4), send_errors: at(5) }
}

fn address(reply: &NetlinkReply) -> Option<(Ipv4Addr, KnownSubnet)> {
    if reply.kind != NEW_ADDRESS || reply.payload.first() != Some(&AF_INET) {
        return None;
    }
    let find = |wanted: u16| {
        reply.attributes(ADDRESS_HEADER).find(|(kind, _)| *kind == wanted).and_then(|(_, value)| ipv4(value))
    };
    // On a point-to-point link, the address is the peer's and the local one is ours.
    let local = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?;
    let subnet = Subnet::around(find(IFA_ADDRESS).unwrap_or(local), *reply.payload.get(1)?)?;
    Some((local, KnownSubnet { subnet, link: reply.native(4) }))
}

/// A route and its link; a default route has no subnet.
fn route(reply: &NetlinkReply) -> Option<(Option<KnownSubnet>, Option<u32>)> {
    if reply.kind != NEW_ROUTE || reply.payload.first() != Some(&AF_INET) {
        return None;
    }
    let prefix = *reply.payload.get(1)?;
    let (mut destination, mut link) = (Ipv4Addr::UNSPECIFIED, None);
    for (kind, value) in reply.attributes(ROUTE_HEADER) {
        match kind {
            RTA_DESTINATION => destination = ipv4(value)?,
            RTA_OUT => link = netlink::native(value),
            _ => {}
        }
    }
    if prefix == 0 {
        return Some((None, link));
    }
    Some((Some(KnownSubnet { subnet: Subnet::around(destination, prefix)?, link }), link))
}

fn ipv4(bytes: &[u8]) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))
}
