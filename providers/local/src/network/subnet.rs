//! Subnets, and which one is free.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use serde::{Deserialize, Serialize};

/// Where a subnet is looked for, in this order: out of the way of docker (172.17), podman (10.88, 10.89), flannel (10.244) and k3s (10.42).
const POOLS: [Subnet; 3] = [
    Subnet { address: Ipv4Addr::new(10, 222, 0, 0), prefix: 16 },
    Subnet { address: Ipv4Addr::new(172, 29, 0, 0), prefix: 16 },
    Subnet { address: Ipv4Addr::new(192, 168, 128, 0), prefix: 17 },
];
/// How large a subnet is that is chosen: 253 pods.
const CHOSEN: u8 = 24;
/// The smallest with room for pods: network, gateway, five pods, broadcast.
const SMALLEST: u8 = 29;
/// The largest that anybody can mean.
const LARGEST: u8 = 8;

/// IPv4 addresses that begin alike: `10.222.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    address: Ipv4Addr,
    prefix: u8,
}

/// Why something is no subnet for pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// Not written as one.
    #[error("{0:?} is no IPv4 subnet: write it as 10.222.0.0/24")]
    Syntax(String),
    /// Of a size that cannot be used.
    #[error("the subnet {0} has no use for pods: its prefix must be from /{LARGEST} to /{SMALLEST}")]
    Size(String),
    /// An address in a subnet, not a subnet.
    #[error("{given} is an address in a subnet: the subnet is {meant}")]
    Host {
        /// What was written.
        given: String,
        /// What was probably meant.
        meant: Subnet,
    },
}

// === impl Subnet ===

impl Subnet {
    /// A subnet for pods.
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

    /// The subnet around an address, of any size; `None` for a prefix over 32.
    pub(crate) fn around(address: Ipv4Addr, prefix: u8) -> Option<Self> {
        (prefix <= 32).then(|| Self { address: Ipv4Addr::from(u32::from(address) & mask(prefix)), prefix })
    }

    /// Its first address, which names it.
    pub fn address(self) -> Ipv4Addr {
        self.address
    }

    /// How many bits its addresses share.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// These bits.
    pub(crate) fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from(mask(self.prefix))
    }

    /// Whether the address is in it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.prefix) == u32::from(self.address)
    }

    /// The host's address in it.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.address) + 1)
    }

    /// What pods may have: behind the gateway, before the broadcast address.
    pub(crate) fn pods(self) -> (Ipv4Addr, Ipv4Addr) {
        let first = u32::from(self.address);
        (Ipv4Addr::from(first + 2), Ipv4Addr::from((first | !mask(self.prefix)) - 1))
    }

    /// Whether they share addresses.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let bits = mask(self.prefix.min(other.prefix));
        u32::from(self.address) & bits == u32::from(other.address) & bits
    }

    /// The first one of the pools that shares nothing with what is taken.
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
    fn what_is_no_subnet_for_pods_is_refused_with_what_to_write() {
        let error = |text: &str| text.parse::<Subnet>().unwrap_err().to_string();
        assert_eq!(error("10.0.0.0"), "\"10.0.0.0\" is no IPv4 subnet: write it as 10.222.0.0/24");
        assert_eq!(error("fd00::/64"), "\"fd00::/64\" is no IPv4 subnet: write it as 10.222.0.0/24");
        assert_eq!(error("10.0.0.7/24"), "10.0.0.7/24 is an address in a subnet: the subnet is 10.0.0.0/24");
        assert_eq!(
            error("10.0.0.0/31"),
            "the subnet 10.0.0.0/31 has no use for pods: its prefix must be from /8 to /29"
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
    fn pods_get_what_is_between_gateway_and_broadcast() {
        let subnet: Subnet = "10.1.2.8/29".parse().unwrap();
        assert_eq!(subnet.gateway(), Ipv4Addr::new(10, 1, 2, 9));
        assert_eq!(subnet.pods(), (Ipv4Addr::new(10, 1, 2, 10), Ipv4Addr::new(10, 1, 2, 14)));
        assert!(
            subnet.contains(Ipv4Addr::new(10, 1, 2, 15)) && !subnet.contains(Ipv4Addr::new(10, 1, 2, 16))
        );
    }

    #[test]
    fn the_first_subnet_that_touches_nothing_is_chosen() {
        assert_eq!(Subnet::choose(&[]), Some(any("10.222.0.0/24")));
        assert_eq!(Subnet::choose(&[any("192.0.2.0/24"), any("10.222.0.0/24")]), Some(any("10.222.1.0/24")));
        // One address in it is enough, and so is a network around it.
        assert_eq!(
            Subnet::choose(&[any("10.222.0.255/32"), any("10.222.1.0/25")]),
            Some(any("10.222.2.0/24"))
        );
        assert_eq!(Subnet::choose(&[any("10.222.0.0/20")]), Some(any("10.222.16.0/24")));
    }

    #[test]
    fn a_machine_with_all_of_ten_in_use_gets_one_of_another_pool() {
        assert_eq!(Subnet::choose(&[any("10.0.0.0/8")]), Some(any("172.29.0.0/24")));
        assert_eq!(Subnet::choose(&[any("10.0.0.0/8"), any("172.16.0.0/12")]), Some(any("192.168.128.0/24")));
        assert_eq!(Subnet::choose(&[any("10.0.0.0/8"), any("172.16.0.0/12"), any("192.168.0.0/16")]), None);
    }
}
