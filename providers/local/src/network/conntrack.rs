//! Connection tracking entries.
//!
//! NAT rules apply to the first packet of a connection only. UDP connections have no end, so a client that keeps
//! sending from the same port would keep reaching the pod that had the host port before. Such entries are removed when
//! a port is added or removed.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

use super::netlink::{self, NetlinkMessage, NetlinkReply, NetlinkSocket};

const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
/// `struct nfgenmsg` of IPv4.
const HEADER: [u8; 4] = [2, 0, 0, 0];
const UDP: u8 = 17;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_ID: u16 = 12;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;

/// Removes the entries of UDP connections to these ports; the next packet is matched against the rules again.
pub(crate) fn flush_udp(ports: &[u16]) -> io::Result<()> {
    if ports.is_empty() {
        return Ok(());
    }
    let socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
    for reply in socket.dump(NetlinkMessage::new(GET, 0, &HEADER))? {
        if !udp_port(&reply).is_some_and(|port| ports.contains(&port)) {
            continue;
        }
        // The id is included, so that a new entry with the same tuple stays.
        let message = NetlinkMessage::new(DELETE, 0, &HEADER).with(|a| {
            for (kind, value) in reply.attributes(HEADER.len()) {
                match kind {
                    CTA_TUPLE_ORIG => a.nested(kind, value),
                    CTA_ID => a.bytes(kind, value),
                    _ => a,
                };
            }
        });
        match socket.call(message) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
            other => other?,
        }
    }
    Ok(())
}

/// The original destination port of a UDP connection.
fn udp_port(reply: &NetlinkReply) -> Option<u16> {
    let find =
        |bytes, wanted| netlink::attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let (_, tuple) = reply.attributes(HEADER.len()).find(|(kind, _)| *kind == CTA_TUPLE_ORIG)?;
    let protocol = find(tuple, CTA_TUPLE_PROTO)?;
    if find(protocol, CTA_PROTO_NUM)? != [UDP] {
        return None;
    }
    Some(u16::from_be_bytes(find(protocol, CTA_PROTO_DST_PORT)?.try_into().ok()?))
}
