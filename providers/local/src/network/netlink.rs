//! Netlink sockets, and encoding and decoding of messages.
//!
//! Written by hand instead of with `netlink-packet-route`, because that crate covers neither nftables nor conntrack:
//! one small encoder serves all three families. `rtnetlink` would add a background task per namespace.

use std::{io, time::Duration};

use netlink_sys::{Socket, SocketAddr};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, recv},
};

/// `NLM_F_REQUEST`.
const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: the list changed while it was read.
const INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`.
const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub(crate) const APPEND: u16 = 0x800;
/// `NLMSG_ERROR`, which with code 0 is an acknowledgement.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// The bits of an attribute's type without flags.
const KIND: u16 = 0x3fff;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// How often an interrupted dump is repeated.
const DUMP_ATTEMPTS: usize = 8;

/// Encoded attributes: length, type and value, aligned to four bytes.
#[derive(Debug, Default)]
pub(crate) struct Attributes(Vec<u8>);

/// A request.
#[derive(Debug)]
pub(crate) struct NetlinkMessage {
    kind: u16,
    flags: u16,
    body: Attributes,
}

/// A message from the kernel.
#[derive(Debug)]
pub(crate) struct NetlinkReply {
    /// Its type.
    pub(crate) kind: u16,
    /// The bytes after the header.
    pub(crate) payload: Vec<u8>,
}

/// A socket, which stays in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct NetlinkSocket(Socket);

/// Notifications of a multicast group, of which only that there are some matters.
#[derive(Debug)]
pub(crate) struct NetlinkNotifications(Socket);

// === impl Attributes ===

impl Attributes {
    /// Adds raw bytes.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let start = self.begin(kind);
        self.0.extend_from_slice(value);
        self.end(start)
    }

    /// Adds a NUL-terminated string.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.begin(kind);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self.end(start)
    }

    /// Adds a number in native byte order, as route netlink uses.
    pub(crate) fn native(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a number in network byte order, as nftables uses.
    pub(crate) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds nested attributes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.begin(kind | NESTED);
        fill(self);
        self.end(start)
    }

    /// Adds encoded attributes as nested ones.
    pub(crate) fn nested(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.bytes(kind | NESTED, value)
    }

    /// Adds a fixed header and attributes, as the peer of a veth pair is described.
    pub(crate) fn nest_with_header(
        &mut self,
        kind: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Self),
    ) -> &mut Self {
        let start = self.begin(kind | NESTED);
        self.0.extend_from_slice(header);
        fill(self);
        self.end(start)
    }

    /// The encoded bytes.
    #[cfg(test)]
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) -> &mut Self {
        // Our messages are far below 64 KiB; the kernel would reject a longer one.
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

// === impl NetlinkMessage ===

impl NetlinkMessage {
    /// A message with the fixed header of its family and no attributes.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        Self { kind, flags: flags | REQUEST, body: Attributes(header.to_vec()) }
    }

    /// Adds attributes.
    pub(crate) fn with(mut self, fill: impl FnOnce(&mut Attributes)) -> Self {
        fill(&mut self.body);
        self
    }

    /// Requests an acknowledgement.
    pub(crate) fn acknowledged(mut self) -> Self {
        self.flags |= ACK;
        self
    }

    /// Appends the encoded message.
    pub(crate) fn encode(&self, sequence: u32, into: &mut Vec<u8>) {
        let length = u32::try_from(HEADER + self.body.0.len()).unwrap_or(u32::MAX);
        into.extend_from_slice(&length.to_ne_bytes());
        into.extend_from_slice(&self.kind.to_ne_bytes());
        into.extend_from_slice(&self.flags.to_ne_bytes());
        into.extend_from_slice(&sequence.to_ne_bytes());
        into.extend_from_slice(&[0; 4]);
        into.extend_from_slice(&self.body.0);
        into.resize(into.len().next_multiple_of(4), 0);
    }
}

// === impl NetlinkReply ===

impl NetlinkReply {
    /// The attributes after a fixed header of this length.
    pub(crate) fn attributes(&self, header: usize) -> impl Iterator<Item = (u16, &[u8])> {
        attributes(self.payload.get(header..).unwrap_or_default())
    }

    /// The 32-bit number at this offset, in native byte order.
    pub(crate) fn native(&self, offset: usize) -> Option<u32> {
        native(self.payload.get(offset..offset + 4)?)
    }
}

/// Decodes attributes; stops at a malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & KIND;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A 32-bit number in native byte order.
pub(crate) fn native(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// A string up to its NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

// === impl NetlinkSocket ===

impl NetlinkSocket {
    /// Opens a socket of a netlink family.
    pub(crate) fn open(family: isize) -> io::Result<Self> {
        let mut socket = Socket::new(family)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Otherwise an error reply contains the whole request.
        socket.set_cap_ack(true)?;
        Ok(Self(socket))
    }

    /// Sends a request and waits for the acknowledgement.
    pub(crate) fn call(&self, message: NetlinkMessage) -> io::Result<()> {
        self.request(message).map(drop)
    }

    /// Sends a request and returns the replies.
    pub(crate) fn request(&self, message: NetlinkMessage) -> io::Result<Vec<NetlinkReply>> {
        let mut bytes = Vec::new();
        message.acknowledged().encode(1, &mut bytes);
        self.0.send(&bytes, 0)?;
        self.replies().map(|(replies, _)| replies)
    }

    /// Sends a dump request and returns the replies.
    pub(crate) fn dump(&self, mut message: NetlinkMessage) -> io::Result<Vec<NetlinkReply>> {
        message.flags |= DUMP;
        let mut bytes = Vec::new();
        message.encode(1, &mut bytes);
        for _ in 0..DUMP_ATTEMPTS {
            self.0.send(&bytes, 0)?;
            let (replies, interrupted) = self.replies()?;
            if !interrupted {
                return Ok(replies);
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the list kept changing while it was read"))
    }

    /// Sends the messages of a transaction, of which exactly one requests an acknowledgement.
    ///
    /// Errors are always answered. The kernel has processed the whole transaction when `send` returns.
    pub(crate) fn send_batch(&self, bytes: &[u8]) -> io::Result<()> {
        self.reserve_send_buffer(bytes.len())?;
        self.0.send(bytes, 0)?;
        self.replies().map(drop)
    }

    /// Makes the send buffer large enough for a message of this length.
    fn reserve_send_buffer(&self, length: usize) -> io::Result<()> {
        // The kernel doubles the value for its own bookkeeping.
        rustix::net::sockopt::set_socket_send_buffer_size_force(&self.0, length.max(65_536) * 2)?;
        Ok(())
    }

    /// Reads up to the acknowledgement or the end of the dump; also returns whether the dump was interrupted.
    fn replies(&self) -> io::Result<(Vec<NetlinkReply>, bool)> {
        let mut replies = Vec::new();
        let mut interrupted = false;
        loop {
            let (datagram, _) = self.0.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Some((length, kind, flags)) = header(rest) {
                let Some(payload) = rest.get(HEADER..length) else {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "truncated netlink message"));
                };
                interrupted |= flags & INTERRUPTED != 0;
                match kind {
                    ERROR | DONE => {
                        let code = payload.get(..4).and_then(native).map_or(0, u32::cast_signed);
                        if code < 0 {
                            return Err(io::Error::from_raw_os_error(-code));
                        }
                        return Ok((replies, interrupted));
                    }
                    kind => replies.push(NetlinkReply { kind, payload: payload.to_vec() }),
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

// === impl NetlinkNotifications ===

impl NetlinkNotifications {
    /// Joins a group of a netlink family.
    pub(crate) fn open(family: isize, group: u32) -> io::Result<Self> {
        let mut socket = Socket::new(family)?;
        socket.bind_auto()?;
        socket.add_membership(group)?;
        Ok(Self(socket))
    }

    /// Waits until there are notifications, or until the time is over. Blocks.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<()> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [0; 64];
        loop {
            match recv(&self.0, &mut buffer, RecvFlags::DONTWAIT) {
                // Some were lost, because they were too many.
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Length, type and flags of the first message.
fn header(bytes: &[u8]) -> Option<(usize, u16, u16)> {
    let length = usize::try_from(native(bytes.get(..4)?)?).ok()?;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let flags = u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?);
    (length >= HEADER).then_some((length, kind, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected bytes are little-endian; other byte orders follow from `to_ne_bytes`.
    #[test]
    #[cfg(target_endian = "little")]
    fn attributes_have_length_type_and_value_and_are_padded() {
        let mut attributes = Attributes::default();
        attributes.text(3, "lo").native(4, 1500).number(2, 1).nest(18, |inner| {
            inner.bytes(1, &[7]);
        });
        assert_eq!(
            attributes.as_slice(),
            [
                7, 0, 3, 0, b'l', b'o', 0, 0, // "lo" and its NUL: 4 + 3, padded to 8
                8, 0, 4, 0, 0xdc, 5, 0, 0, // 1500 in native byte order
                8, 0, 2, 0, 0, 0, 0, 1, // 1 in network byte order
                12, 0, 18, 0x80, 5, 0, 1, 0, 7, 0, 0, 0, // nested: the inner padding counts
            ]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_message_starts_with_length_type_flags_and_sequence() {
        let mut bytes = Vec::new();
        NetlinkMessage::new(18, 0, &[9, 9, 9, 9]).acknowledged().encode(7, &mut bytes);
        assert_eq!(bytes, [20, 0, 0, 0, 18, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9]);
    }

    #[test]
    fn encoded_attributes_can_be_decoded() {
        let mut written = Attributes::default();
        written.text(3, "eth0").nest(18, |inner| {
            inner.text(1, "veth");
        });
        let read: Vec<_> = attributes(written.as_slice()).collect();
        assert_eq!(read[0], (3, &b"eth0\0"[..]));
        assert_eq!(read[1].0, 18);
        assert_eq!(
            attributes(read[1].1).map(|(kind, value)| (kind, text(value))).collect::<Vec<_>>(),
            [(1, "veth".to_owned())]
        );
    }

    #[test]
    fn malformed_attributes_end_the_list() {
        assert_eq!(attributes(&[200, 0, 1, 0, 1]).count(), 0);
        assert_eq!(attributes(&[2, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[1]).count(), 0);
    }

    #[test]
    fn an_error_of_the_kernel_is_returned_with_its_errno() {
        let socket = NetlinkSocket::open(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
        // RTM_GETLINK for an index that does not exist.
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let error = socket.request(NetlinkMessage::new(18, 0, &header)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NODEV.raw_os_error()));
    }
}
