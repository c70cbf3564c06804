//! A minimal nftables client: tables, chains and rules in one transaction, without the `nft` program.

mod expression;

use std::{collections::BTreeMap, io};

use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

pub(crate) use self::expression::{Expression, Match};
use super::netlink::{self, APPEND, CREATE, NetlinkMessage, NetlinkNotifications, NetlinkSocket};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;
/// `NFNLGRP_NFTABLES`: the group that hears of every change of the rules.
const CHANGES: u32 = 7;

/// `NFPROTO_IPV4`: the family `ip` of tables.
const IPV4: u8 = 2;
/// `struct nfgenmsg`.
const HEADER: usize = 4;

const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_NUMBER: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEVICE: u16 = 3;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEMENT: u16 = 1;
const NFTA_GENERATION_ID: u16 = 1;
/// `NFPROTO_INET`: tables for both versions of IP.
const INET: u8 = 1;
/// `NF_INET_FORWARD`.
const FORWARD: u32 = 2;
/// `NF_DROP`.
const DROP: u32 = 0;
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// The family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4 packets of this host.
    Ip = 2,
    /// Everything that an interface receives.
    Netdev = 5,
}

/// The netfilter hook of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Prerouting,
    Output,
    Postrouting,
    /// Of an interface, in the family `netdev`.
    Ingress(String),
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// `nat` or `filter`.
    pub(crate) kind: &'static str,
    pub(crate) hook: Hook,
    pub(crate) priority: i32,
    pub(crate) rules: Vec<Vec<Expression>>,
}

/// The number of rules in each chain, by table and chain.
pub(crate) type RuleCounts = BTreeMap<(String, String), usize>;

/// Replaces the content of a table in one transaction: every packet meets either the old rules or the new ones.
pub(crate) fn replace(family: Family, table: &str, chains: &[Chain]) -> io::Result<()> {
    NetlinkSocket::open(NETLINK_NETFILTER)?.send_batch(&replace_batch(family, table, chains))
}

/// A number that changes with every transaction of anybody.
pub(crate) fn generation() -> io::Result<u32> {
    let request = NetlinkMessage::new(GET_GENERATION, 0, &header(0, 0));
    let replies = NetlinkSocket::open(NETLINK_NETFILTER)?.request(request)?;
    let number = replies.iter().find_map(|reply| attribute(reply, NFTA_GENERATION_ID)?.try_into().ok());
    number.map(u32::from_be_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Notifications of changes of the rules.
pub(crate) fn changes() -> io::Result<NetlinkNotifications> {
    NetlinkNotifications::open(NETLINK_NETFILTER, CHANGES)
}

/// The number of rules in every chain of a family.
pub(crate) fn rule_counts(family: Family) -> io::Result<RuleCounts> {
    let socket = NetlinkSocket::open(NETLINK_NETFILTER)?;
    let list = |kind| socket.dump(NetlinkMessage::new(kind, 0, &header(family as u8, 0)));
    let mut counts = RuleCounts::new();
    for reply in &list(GET_CHAIN)? {
        counts.extend(chain_name(reply, NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME).map(|name| (name, 0)));
    }
    for reply in &list(GET_RULE)? {
        if let Some(name) = chain_name(reply, NFTA_RULE_TABLE, NFTA_RULE_CHAIN) {
            *counts.entry(name).or_default() += 1;
        }
    }
    Ok(counts)
}

/// The table and the chain that a reply names in these attributes.
fn chain_name(reply: &netlink::NetlinkReply, table: u16, chain: u16) -> Option<(String, String)> {
    Some((netlink::text(attribute(reply, table)?), netlink::text(attribute(reply, chain)?)))
}

/// Whether a table has these chains with all their rules.
pub(crate) fn has_all(counts: &RuleCounts, table: &str, chains: &[Chain]) -> bool {
    let count = |chain: &Chain| counts.get(&(table.to_owned(), chain.name.to_owned()));
    chains.iter().all(|chain| count(chain) == Some(&chain.rules.len()))
}

/// Removes all rules of everybody, as `nft flush ruleset` does.
#[cfg(test)]
pub(crate) fn flush() -> io::Result<()> {
    let delete = NetlinkMessage::new(DELETE_TABLE, 0, &header(0, 0));
    NetlinkSocket::open(NETLINK_NETFILTER)?.send_batch(&batch(vec![delete]))
}

/// Removes a table; it may not exist.
pub(crate) fn remove(family: Family, table: &str) -> io::Result<()> {
    let socket = match NetlinkSocket::open(NETLINK_NETFILTER) {
        Err(error) if error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()) => return Ok(()),
        other => other?,
    };
    match socket.send_batch(&batch(vec![table_message(DELETE_TABLE, 0, family, table)])) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::OPNOTSUPP)) => Ok(()),
        other => other,
    }
}

/// The names of the tables of family `ip` on this host.
///
/// Fails if the kernel has no nftables, or if this process may not list them.
pub fn tables() -> io::Result<Vec<String>> {
    let replies =
        NetlinkSocket::open(NETLINK_NETFILTER)?.dump(NetlinkMessage::new(GET_TABLE, 0, &header(IPV4, 0)))?;
    Ok(replies.iter().filter_map(|reply| attribute(reply, NFTA_TABLE_NAME).map(netlink::text)).collect())
}

/// A chain of another firewall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignChain {
    /// `ip` or `inet`.
    pub(crate) family: &'static str,
    pub(crate) table: String,
    pub(crate) name: String,
}

/// The chains for forwarded IPv4 packets with policy `drop`.
pub(crate) fn dropping_chains() -> io::Result<Vec<ForeignChain>> {
    // All families.
    let replies =
        NetlinkSocket::open(NETLINK_NETFILTER)?.dump(NetlinkMessage::new(GET_CHAIN, 0, &header(0, 0)))?;
    Ok(replies.iter().filter_map(drops_forwarded).collect())
}

fn drops_forwarded(reply: &netlink::NetlinkReply) -> Option<ForeignChain> {
    let family = match *reply.payload.first()? {
        IPV4 => "ip",
        INET => "inet",
        _ => return None,
    };
    let value = |wanted: u16| attribute(reply, wanted);
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
    let hook = netlink::attributes(value(NFTA_CHAIN_HOOK)?).find(|(kind, _)| *kind == NFTA_HOOK_NUMBER)?.1;
    if number(hook)? != FORWARD || number(value(NFTA_CHAIN_POLICY)?)? != DROP {
        return None;
    }
    let text = |kind| value(kind).map(netlink::text);
    Some(ForeignChain { family, table: text(NFTA_CHAIN_TABLE)?, name: text(NFTA_CHAIN_NAME)? })
}

/// The value of an attribute.
fn attribute(reply: &netlink::NetlinkReply, wanted: u16) -> Option<&[u8]> {
    reply.attributes(HEADER).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Creates the table so that deleting it cannot fail, deletes it with its content, and creates it again.
fn replace_batch(family: Family, table: &str, chains: &[Chain]) -> Vec<u8> {
    let mut messages = vec![
        table_message(NEW_TABLE, CREATE, family, table),
        table_message(DELETE_TABLE, 0, family, table),
        table_message(NEW_TABLE, CREATE, family, table),
    ];
    messages.extend(chains.iter().map(|chain| self::chain(family, table, chain)));
    for chain in chains {
        messages.extend(chain.rules.iter().map(|expressions| rule(family, table, chain.name, expressions)));
    }
    batch(messages)
}

fn table_message(kind: u16, flags: u16, family: Family, table: &str) -> NetlinkMessage {
    NetlinkMessage::new(kind, flags, &header(family as u8, 0)).with(|a| {
        a.text(NFTA_TABLE_NAME, table);
    })
}

fn chain(family: Family, table: &str, chain: &Chain) -> NetlinkMessage {
    let number = match &chain.hook {
        Hook::Prerouting | Hook::Ingress(_) => 0,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    };
    NetlinkMessage::new(NEW_CHAIN, CREATE, &header(family as u8, 0)).with(|a| {
        a.text(NFTA_CHAIN_TABLE, table)
            .text(NFTA_CHAIN_NAME, chain.name)
            .nest(NFTA_CHAIN_HOOK, |hook| {
                hook.number(NFTA_HOOK_NUMBER, number)
                    .number(NFTA_HOOK_PRIORITY, chain.priority.cast_unsigned());
                if let Hook::Ingress(device) = &chain.hook {
                    hook.text(NFTA_HOOK_DEVICE, device);
                }
            })
            .number(NFTA_CHAIN_POLICY, ACCEPT)
            .text(NFTA_CHAIN_TYPE, chain.kind);
    })
}

fn rule(family: Family, table: &str, chain: &str, expressions: &[Expression]) -> NetlinkMessage {
    NetlinkMessage::new(NEW_RULE, CREATE | APPEND, &header(family as u8, 0)).with(|a| {
        a.text(NFTA_RULE_TABLE, table).text(NFTA_RULE_CHAIN, chain).nest(NFTA_RULE_EXPRESSIONS, |list| {
            for expression in expressions {
                list.nest(NFTA_LIST_ELEMENT, |element| expression.encode(element));
            }
        });
    })
}

/// Encodes a transaction. The last message requests the acknowledgement: errors of earlier ones are answered before it.
fn batch(messages: Vec<NetlinkMessage>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let last = messages.len();
    NetlinkMessage::new(BATCH_BEGIN, 0, &header(0, SUBSYSTEM)).encode(0, &mut bytes);
    for (sequence, message) in (1u32..).zip(messages) {
        let message = if sequence as usize == last { message.acknowledged() } else { message };
        message.encode(sequence, &mut bytes);
    }
    NetlinkMessage::new(BATCH_END, 0, &header(0, SUBSYSTEM)).encode(u32::MAX, &mut bytes);
    bytes
}

/// `struct nfgenmsg`: family, version and, for a transaction, the subsystem.
fn header(family: u8, subsystem: u16) -> [u8; HEADER] {
    let [high, low] = subsystem.to_be_bytes();
    [family, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `linux/netfilter/nfnetlink.h`: begin for subsystem 10 in network byte order, the deletion, end.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_transaction_has_begin_and_end_and_its_last_message_is_acknowledged() {
        let bytes = batch(vec![table_message(DELETE_TABLE, 0, Family::Ip, "t")]);
        let begin = [20, 0, 0, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];
        let delete = [
            28, 0, 0, 0, 2, 10, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, // length, type 0x0a02, request and ack
            2, 0, 0, 0, // family ip
            6, 0, 1, 0, b't', 0, 0, 0, // the name
        ];
        let end = [20, 0, 0, 0, 17, 0, 1, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 10];
        assert_eq!(bytes, [&begin[..], &delete[..], &end[..]].concat());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_chain_is_encoded_with_hook_priority_and_type() {
        let mut bytes = Vec::new();
        let made =
            Chain { name: "c", kind: "nat", hook: Hook::Postrouting, priority: -100, rules: Vec::new() };
        chain(Family::Ip, "t", &made).encode(1, &mut bytes);
        assert_eq!(
            bytes[16..],
            [
                2, 0, 0, 0, // family ip
                6, 0, 1, 0, b't', 0, 0, 0, // table
                6, 0, 3, 0, b'c', 0, 0, 0, // name
                20, 0, 4, 0x80, // hook, nested
                8, 0, 1, 0, 0, 0, 0, 4, // postrouting
                8, 0, 2, 0, 0xff, 0xff, 0xff, 0x9c, // -100
                8, 0, 5, 0, 0, 0, 0, 1, // accept what no rule takes
                8, 0, 7, 0, b'n', b'a', b't', 0, // type
            ]
        );
    }

    #[test]
    fn only_chains_that_drop_forwarded_ipv4_packets_are_found() {
        let reply = |family: u8, hook: u32, policy: u32| {
            let mut body = netlink::Attributes::default();
            body.text(NFTA_CHAIN_TABLE, "filter").text(NFTA_CHAIN_NAME, "FORWARD").nest(
                NFTA_CHAIN_HOOK,
                |inner| {
                    inner.number(NFTA_HOOK_NUMBER, hook).number(NFTA_HOOK_PRIORITY, 0);
                },
            );
            body.number(NFTA_CHAIN_POLICY, policy);
            let payload = [&header(family, 0)[..], body.as_slice()].concat();
            drops_forwarded(&netlink::NetlinkReply { kind: NEW_CHAIN, payload })
        };
        let found = ForeignChain { family: "ip", table: "filter".into(), name: "FORWARD".into() };
        assert_eq!(reply(IPV4, FORWARD, DROP), Some(found));
        assert_eq!(reply(INET, FORWARD, DROP).map(|chain| chain.family), Some("inet"));
        // IPv6, the input hook, or policy accept.
        for (family, hook, policy) in [(10, FORWARD, DROP), (IPV4, 1, DROP), (IPV4, FORWARD, ACCEPT)] {
            assert_eq!(reply(family, hook, policy), None);
        }
        // A chain without a hook is only jumped to.
        let mut body = netlink::Attributes::default();
        body.text(NFTA_CHAIN_TABLE, "filter").text(NFTA_CHAIN_NAME, "DOCKER-USER");
        let payload = [&header(IPV4, 0)[..], body.as_slice()].concat();
        assert_eq!(drops_forwarded(&netlink::NetlinkReply { kind: NEW_CHAIN, payload }), None);
    }
}
