//! Subnets, and choosing a free one.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use serde::{Deserialize, Serialize};

/// Pools that a subnet is chosen from, in this order; they avoid docker (172.17), podman (10.88, 10.89), flannel
/// (10.244) and k3s (10.42).
const POOLS: [Subnet; 3] = [
    Subnet { address: Ipv4Addr::new(10, 222, 0, 0), prefix: 16 },
    Subnet { address: Ipv4Addr::new(172, 29, 0, 0), prefix: 16 },
    Subnet { address: Ipv4Addr::new(192, 168, 128, 0), prefix: 17 },
];
/// Prefix length of a chosen subnet: 253 pods.
const CHOSEN: u8 = 24;
/// The smallest subnet with room for pods: network, gateway, five pods, broadcast.
const SMALLEST: u8 = 29;
/// The largest plausible subnet.
const LARGEST: u8 = 8;

/// An IPv4 subnet, such as `10.222.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    address: Ipv4Addr,
    prefix: u8,
}

/// Why a text is not a valid pod subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// Invalid syntax.
    #[error("{0:?} is not an IPv4 subnet: write it as 10.222.0.0/24")]
    Syntax(String),
    /// Too large or too small.
    #[error("the subnet {0} cannot be used for pods: its prefix must be from /{LARGEST} to /{SMALLEST}")]
    Size(String),
    /// An address with host bits set.
    #[error("{given} has host bits set: the subnet is {meant}")]
    Host {
        /// The given text.
        given: String,
        /// The subnet of the address.
        meant: Subnet,
    },
}

// === impl Subnet ===

impl Subnet {
    /// A pod subnet.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Result<Self, SubnetError> {
        if !(LARGEST..=SMALLEST).contains(&prefix) {
            return Err(SubnetError::Size(format!("{address}/{prefix}")));
        }
        let meant = Self { address: Ipv4Addr::from(u32::from(address) & mask(prefix)), prefix };
        if meant.address != address {
            return Err(SubnetError::Host { given: format!("{address}/{prefix}"), meant });
        }
        Ok(meant)
    }

    /// The subnet of an address, of any size; `None` for a prefix over 32.
    pub(crate) fn around(address: Ipv4Addr, prefix: u8) -> Option<Self> {
        (prefix <= 32).then(|| Self { address: Ipv4Addr::from(u32::from(address) & mask(prefix)), prefix })
    }

    /// The network address.
    pub fn address(self) -> Ipv4Addr {
        self.address
    }

    /// The prefix length.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The network mask.
    pub(crate) fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from(mask(self.prefix))
    }

    /// Whether the subnet contains an address.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.prefix) == u32::from(self.address)
    }

    /// The address of the bridge.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.address) + 1)
    }

    /// The first and last address for pods, between gateway and broadcast address.
    pub(crate) fn pods(self) -> (Ipv4Addr, Ipv4Addr) {
        let first = u32::from(self.address);
        (Ipv4Addr::from(first + 2), Ipv4Addr::from((first | !mask(self.prefix)) - 1))
    }

    /// Whether two subnets share addresses.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let bits = mask(self.prefix.min(other.prefix));
        u32::from(self.address) & bits == u32::from(other.address) & bits
    }

    /// The first subnet of the pools that does not overlap `taken`.
    pub(crate) fn choose(taken: &[Self]) -> Option<Self> {
        POOLS.into_iter().find_map(|pool| {
            let count = 1u32 << (CHOSEN - pool.prefix);
            (0..count)
                .map(|n| Self {
                    address: Ipv4Addr::from(u32::from(pool.address) + (n << (32 - CHOSEN))),
                    prefix: CHOSEN,
                })
                .find(|candidate| !taken.iter().any(|taken| taken.overlaps(*candidate)))
        })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let wrong = || SubnetError::Syntax(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        Self::new(address.parse().map_err(|_| wrong())?, prefix.parse().map_err(|_| wrong())?)
    }
}

impl TryFrom<String> for Subnet {
    type Error = SubnetError;

    fn try_from(text: String) -> Result<Self, SubnetError> {
        text.parse()
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(text: &str) -> Subnet {
        let (address, prefix) = text.split_once('/').unwrap();
        Subnet::around(address.parse().unwrap(), prefix.parse().unwrap()).unwrap()
    }

    #[test]
    fn an_invalid_subnet_is_rejected_with_a_hint() {
        let error = |text: &str| text.parse::<Subnet>().unwrap_err().to_string();
        assert_eq!(error("10.0.0.0"), "\"10.0.0.0\" is not an IPv4 subnet: write it as 10.222.0.0/24");
        assert_eq!(error("fd00::/64"), "\"fd00::/64\" is not an IPv4 subnet: write it as 10.222.0.0/24");
        assert_eq!(error("10.0.0.7/24"), "10.0.0.7/24 has host bits set: the subnet is 10.0.0.0/24");
        assert_eq!(
            error("10.0.0.0/31"),
            "the subnet 10.0.0.0/31 cannot be used for pods: its prefix must be from /8 to /29"
        );
        assert!("10.0.0.0/33".parse::<Subnet>().is_err());
        assert!("10.0.0.0/0".parse::<Subnet>().is_err());
    }

    #[test]
    fn a_subnet_is_written_and_read_as_text() {
        let subnet: Subnet = serde_json::from_str("\"10.5.0.0/16\"").unwrap();
        assert_eq!(subnet, Subnet::new(Ipv4Addr::new(10, 5, 0, 0), 16).unwrap());
        assert_eq!(serde_json::to_string(&subnet).unwrap(), "\"10.5.0.0/16\"");
    }

    #[test]
    fn pods_get_the_addresses_between_gateway_and_broadcast() {
        let subnet: Subnet = "10.1.2.8/29".parse().unwrap();
        assert_eq!(subnet.gateway(), Ipv4Addr::new(10, 1, 2, 9));
        assert_eq!(subnet.pods(), (Ipv4Addr::new(10, 1, 2, 10), Ipv4Addr::new(10, 1, 2, 14)));
        assert!(
            subnet.contains(Ipv4Addr::new(10, 1, 2, 15)) && !subnet.contains(Ipv4Addr::new(10, 1, 2, 16))
        );
    }

    #[test]
    fn the_first_subnet_without_overlap_is_chosen() {
        assert_eq!(Subnet::choose(&[]), Some(any("10.222.0.0/24")));
        assert_eq!(Subnet::choose(&[any("192.0.2.0/24"), any("10.222.0.0/24")]), Some(any("10.222.1.0/24")));
        // A single address in it is an overlap, and so is a larger network.
        assert_eq!(
            Subnet::choose(&[any("10.222.0.255/32"), any("10.222.1.0/25")]),
            Some(any("10.222.2.0/24"))
        );
        assert_eq!(Subnet::choose(&[any("10.222.0.0/20")]), Some(any("10.222.16.0/24")));
    }

    #[test]
    fn another_pool_is_used_if_all_of_10_0_0_0_is_taken() {
        assert_eq!(Subnet::choose(&[any("10.0.0.0/8")]), Some(any("172.29.0.0/24")));
        assert_eq!(Subnet::choose(&[any("10.0.0.0/8"), any("172.16.0.0/12")]), Some(any("192.168.128.0/24")));
        assert_eq!(Subnet::choose(&[any("10.0.0.0/8"), any("172.16.0.0/12"), any("192.168.0.0/16")]), None);
    }
}
