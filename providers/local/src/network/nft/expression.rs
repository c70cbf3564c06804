//! Expressions of an nftables rule: each one loads, compares or acts. A comparison that fails ends the rule.

use std::net::Ipv4Addr;

use crate::network::{Subnet, netlink::Attributes};

const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;

const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_FIB_DREG: u16 = 1;
const NFTA_FIB_RESULT: u16 = 2;
const NFTA_FIB_FLAGS: u16 = 3;
const NFTA_CT_DREG: u16 = 1;
const NFTA_CT_KEY: u16 = 2;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFTA_NAT_REG_PROTO_MIN: u16 = 5;

const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_L4PROTO: u32 = 16;
const BASE_LINK: u32 = 0;
const BASE_NETWORK: u32 = 1;
const BASE_TRANSPORT: u32 = 2;
const FIB_RESULT_ADDRTYPE: u32 = 3;
const FIB_DADDR: u32 = 2;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;
const CT_STATUS: u32 = 2;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 1 << 5;
const EQUAL: u32 = 0;
const UNEQUAL: u32 = 1;
const NAT_DNAT: u32 = 1;
const IPV4: u32 = 2;
const DROP: u32 = 0;
/// Registers: the verdict, and two of 16 bytes.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;
/// `IFNAMSIZ`.
const NAME: usize = 16;

/// A property of a packet to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// Input interface.
    In(String),
    /// Output interface.
    Out(String),
    /// The protocol of a frame, `0x0800` for IPv4.
    EtherType(u16),
    /// Source MAC address of a frame.
    SourceMac([u8; 6]),
    /// MAC address of the sender of an ARP packet.
    ArpSenderMac([u8; 6]),
    /// IP address of the sender of an ARP packet.
    ArpSender(Ipv4Addr),
    /// Source address.
    Source(Subnet),
    /// Destination address.
    Destination(Subnet),
    /// TCP, UDP or SCTP, by number.
    Protocol(u8),
    /// Destination port.
    Port(u16),
    /// The destination is an address of this host.
    LocalBackend,
    /// The connection was changed by DNAT.
    Redirected,
}

/// An expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// The kernel's `meta` expression with its key.
    Meta(u32),
    Payload {
        base: u32,
        offset: u32,
        length: u32,
    },
    Mask(Vec<u8>),
    Compare {
        equal: bool,
        value: Vec<u8>,
    },
    FibType,
    ConnectionStatus,
    Load {
        register: u32,
        value: Vec<u8>,
    },
    DestinationNat,
    Masquerade,
    Drop,
}

// === impl Match ===

impl Match {
    /// Expressions that continue if the packet matches.
    pub(crate) fn is(&self) -> Vec<Expression> {
        self.steps(true)
    }

    /// Expressions that continue if the packet does not match.
    pub(crate) fn is_not(&self) -> Vec<Expression> {
        self.steps(false)
    }

    fn steps(&self, equal: bool) -> Vec<Expression> {
        let compare = |value: Vec<u8>| Expression::Compare { equal, value };
        match self {
            Self::In(name) => vec![Expression::Meta(META_IIFNAME), compare(padded_name(name))],
            Self::Out(name) => vec![Expression::Meta(META_OIFNAME), compare(padded_name(name))],
            Self::EtherType(number) => vec![
                Expression::Payload { base: BASE_LINK, offset: 12, length: 2 },
                compare(number.to_be_bytes().to_vec()),
            ],
            Self::SourceMac(address) => {
                vec![Expression::Payload { base: BASE_LINK, offset: 6, length: 6 }, compare(address.to_vec())]
            }
            Self::ArpSenderMac(address) => vec![
                Expression::Payload { base: BASE_NETWORK, offset: 8, length: 6 },
                compare(address.to_vec()),
            ],
            Self::ArpSender(address) => vec![
                Expression::Payload { base: BASE_NETWORK, offset: 14, length: 4 },
                compare(address.octets().to_vec()),
            ],
            Self::Source(subnet) => in_subnet(12, *subnet, equal),
            Self::Destination(subnet) => in_subnet(16, *subnet, equal),
            Self::Protocol(number) => vec![Expression::Meta(META_L4PROTO), compare(vec![*number])],
            Self::Port(port) => vec![
                Expression::Payload { base: BASE_TRANSPORT, offset: 2, length: 2 },
                compare(port.to_be_bytes().to_vec()),
            ],
            Self::LocalBackend => vec![Expression::FibType, compare(LOCAL.to_ne_bytes().to_vec())],
            Self::Redirected => vec![
                Expression::ConnectionStatus,
                Expression::Mask(STATUS_DNAT.to_ne_bytes().to_vec()),
                Expression::Compare { equal: !equal, value: vec![0; 4] },
            ],
        }
    }
}

/// Matches the address at this offset of the IP header against a subnet.
fn in_subnet(offset: u32, subnet: Subnet, equal: bool) -> Vec<Expression> {
    let mut steps = vec![Expression::Payload { base: BASE_NETWORK, offset, length: 4 }];
    if subnet.prefix() < 32 {
        steps.push(Expression::Mask(subnet.mask().octets().to_vec()));
    }
    steps.push(Expression::Compare { equal, value: subnet.address().octets().to_vec() });
    steps
}

/// An interface name as the kernel compares it, with padding.
fn padded_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(NAME, 0);
    bytes
}

// === impl Expression ===

impl Expression {
    /// DNAT to an address and port.
    pub(crate) fn redirect(address: Ipv4Addr, port: u16) -> Vec<Self> {
        vec![
            Self::Load { register: FIRST, value: address.octets().to_vec() },
            Self::Load { register: SECOND, value: port.to_be_bytes().to_vec() },
            Self::DestinationNat,
        ]
    }

    /// Encodes it as an element of a rule.
    pub(super) fn encode(&self, into: &mut Attributes) {
        into.text(NFTA_EXPR_NAME, self.name()).nest(NFTA_EXPR_DATA, |data| self.data(data));
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Meta(_) => "meta",
            Self::Payload { .. } => "payload",
            Self::Mask(_) => "bitwise",
            Self::Compare { .. } => "cmp",
            Self::FibType => "fib",
            Self::ConnectionStatus => "ct",
            Self::Load { .. } | Self::Drop => "immediate",
            Self::DestinationNat => "nat",
            Self::Masquerade => "masq",
        }
    }

    fn data(&self, data: &mut Attributes) {
        let value = |bytes: &[u8]| {
            let bytes = bytes.to_vec();
            move |inner: &mut Attributes| {
                inner.bytes(NFTA_DATA_VALUE, &bytes);
            }
        };
        match self {
            Self::Meta(key) => {
                data.number(NFTA_META_DREG, FIRST).number(NFTA_META_KEY, *key);
            }
            Self::Payload { base, offset, length } => {
                data.number(NFTA_PAYLOAD_DREG, FIRST)
                    .number(NFTA_PAYLOAD_BASE, *base)
                    .number(NFTA_PAYLOAD_OFFSET, *offset)
                    .number(NFTA_PAYLOAD_LEN, *length);
            }
            Self::Mask(mask) => {
                data.number(NFTA_BITWISE_SREG, FIRST)
                    .number(NFTA_BITWISE_DREG, FIRST)
                    .number(NFTA_BITWISE_LEN, u32::try_from(mask.len()).unwrap_or(u32::MAX))
                    .nest(NFTA_BITWISE_MASK, value(mask))
                    .nest(NFTA_BITWISE_XOR, value(&vec![0; mask.len()]));
            }
            Self::Compare { equal, value: wanted } => {
                data.number(NFTA_CMP_SREG, FIRST)
                    .number(NFTA_CMP_OP, if *equal { EQUAL } else { UNEQUAL })
                    .nest(NFTA_CMP_DATA, value(wanted));
            }
            Self::FibType => {
                data.number(NFTA_FIB_DREG, FIRST)
                    .number(NFTA_FIB_RESULT, FIB_RESULT_ADDRTYPE)
                    .number(NFTA_FIB_FLAGS, FIB_DADDR);
            }
            Self::ConnectionStatus => {
                data.number(NFTA_CT_DREG, FIRST).number(NFTA_CT_KEY, CT_STATUS);
            }
            Self::Load { register, value: loaded } => {
                data.number(NFTA_IMMEDIATE_DREG, *register).nest(NFTA_IMMEDIATE_DATA, value(loaded));
            }
            Self::DestinationNat => {
                data.number(NFTA_NAT_TYPE, NAT_DNAT)
                    .number(NFTA_NAT_FAMILY, IPV4)
                    .number(NFTA_NAT_REG_ADDR_MIN, FIRST)
                    .number(NFTA_NAT_REG_PROTO_MIN, SECOND);
            }
            Self::Masquerade => {}
            Self::Drop => {
                data.number(NFTA_IMMEDIATE_DREG, VERDICT).nest(NFTA_IMMEDIATE_DATA, |inner| {
                    inner.nest(NFTA_DATA_VERDICT, |verdict| {
                        verdict.number(NFTA_VERDICT_CODE, DROP);
                    });
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(expression: &Expression) -> Vec<u8> {
        let mut attributes = Attributes::default();
        expression.encode(&mut attributes);
        attributes.as_slice().to_vec()
    }

    /// `meta l4proto` into register 1: the name, then destination register and key in network byte order.
    #[test]
    #[cfg(target_endian = "little")]
    fn an_expression_is_encoded_as_name_and_nested_data() {
        assert_eq!(
            encoded(&Expression::Meta(META_L4PROTO)),
            [
                9, 0, 1, 0, b'm', b'e', b't', b'a', 0, 0, 0, 0, // name
                20, 0, 2, 0x80, // data
                8, 0, 1, 0, 0, 0, 0, 1, // register 1
                8, 0, 2, 0, 0, 0, 0, 16, // l4proto
            ]
        );
        assert_eq!(
            encoded(&Expression::Masquerade),
            [9, 0, 1, 0, b'm', b'a', b's', b'q', 0, 0, 0, 0, 4, 0, 2, 0x80]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_comparison_has_the_bytes_of_the_packet() {
        let steps = Match::Port(8080).is();
        assert_eq!(steps[0], Expression::Payload { base: BASE_TRANSPORT, offset: 2, length: 2 });
        assert_eq!(
            encoded(&steps[1]),
            [
                8, 0, 1, 0, b'c', b'm', b'p', 0, // name
                32, 0, 2, 0x80, // data
                8, 0, 1, 0, 0, 0, 0, 1, // register 1
                8, 0, 2, 0, 0, 0, 0, 0, // equal
                12, 0, 3, 0x80, 6, 0, 1, 0, 0x1f, 0x90, 0, 0, // 8080
            ]
        );
    }

    #[test]
    fn a_subnet_is_compared_with_its_mask_and_a_single_address_without() {
        let subnet = Subnet::around(Ipv4Addr::new(10, 1, 2, 3), 24).unwrap();
        assert_eq!(
            Match::Source(subnet).is_not(),
            [
                Expression::Payload { base: BASE_NETWORK, offset: 12, length: 4 },
                Expression::Mask(vec![255, 255, 255, 0]),
                Expression::Compare { equal: false, value: vec![10, 1, 2, 0] },
            ]
        );
        let address = Subnet::around(Ipv4Addr::new(10, 1, 2, 3), 32).unwrap();
        assert_eq!(
            Match::Destination(address).is(),
            [
                Expression::Payload { base: BASE_NETWORK, offset: 16, length: 4 },
                Expression::Compare { equal: true, value: vec![10, 1, 2, 3] },
            ]
        );
    }

    #[test]
    fn an_interface_name_is_compared_with_padding() {
        let steps = Match::Out("vk0".to_owned()).is();
        let Expression::Compare { equal: true, value } = &steps[1] else { panic!("{steps:?}") };
        assert_eq!((value.len(), &value[..4]), (16, &b"vk0\0"[..]));
    }
}
