//! Allocates addresses of pods from a range.

use std::{collections::VecDeque, fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

/// A range of addresses, such as `10.88.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

/// Allocates the addresses of one range. Released addresses are reused last.
#[derive(Debug, Default)]
pub(super) struct AddressPool {
    given: u128,
    returned: VecDeque<IpAddr>,
}

// === impl Cidr ===

impl Default for Cidr {
    fn default() -> Self {
        Self { first: IpAddr::from([10, 88, 0, 0]), prefix: 16 }
    }
}

impl Cidr {
    /// The number of addresses for pods, without the network, gateway and broadcast addresses.
    pub fn size(&self) -> u128 {
        let bits = if self.first.is_ipv4() { 32 } else { 128 };
        1_u128.checked_shl(bits - u32::from(self.prefix)).unwrap_or(u128::MAX).saturating_sub(3)
    }

    fn nth(&self, offset: u128) -> IpAddr {
        match self.first {
            IpAddr::V4(first) => {
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                IpAddr::from((u32::from(first).saturating_add(offset)).to_be_bytes())
            }
            IpAddr::V6(first) => IpAddr::from((u128::from(first).saturating_add(offset)).to_be_bytes()),
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a range of addresses: write one such as 10.88.0.0/16");
        let (first, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let first: IpAddr = first.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let bits = if first.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return Err(wrong());
        }
        let host = bits - prefix;
        let first = match first {
            IpAddr::V4(ip) => {
                IpAddr::from((u32::from(ip) & u32::MAX.checked_shl(host.into()).unwrap_or(0)).to_be_bytes())
            }
            IpAddr::V6(ip) => {
                IpAddr::from((u128::from(ip) & u128::MAX.checked_shl(host.into()).unwrap_or(0)).to_be_bytes())
            }
        };
        let range = Self { first, prefix };
        if range.size() == 0 {
            return Err(format!("{text:?} has no room for a pod: write a range such as 10.88.0.0/16"));
        }
        Ok(range)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(range: Cidr) -> Self {
        range.to_string()
    }
}

// === impl AddressPool ===

impl AddressPool {
    /// Allocates an address; `None` if all are in use.
    pub(super) fn allocate(&mut self, range: Cidr) -> Option<IpAddr> {
        if self.given < range.size() {
            self.given += 1;
            // 0 is the network address and 1 the gateway.
            return Some(range.nth(self.given + 1));
        }
        self.returned.pop_front()
    }

    pub(super) fn release(&mut self, address: IpAddr) {
        self.returned.push_back(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_gives_each_address_once_and_returned_ones_last() {
        let range: Cidr = "10.1.2.9/29".parse().unwrap();
        assert_eq!(range.to_string(), "10.1.2.8/29");
        let mut pool = AddressPool::default();
        let all: Vec<String> =
            std::iter::from_fn(|| pool.allocate(range)).map(|address| address.to_string()).collect();
        assert_eq!(all, ["10.1.2.10", "10.1.2.11", "10.1.2.12", "10.1.2.13", "10.1.2.14"]);
        pool.release("10.1.2.11".parse().unwrap());
        assert_eq!(pool.allocate(range), Some("10.1.2.11".parse().unwrap()));
        assert_eq!(pool.allocate(range), None);
    }

    #[test]
    fn a_wrong_range_is_refused_with_an_example() {
        for text in ["10.88.0.0", "10.88.0.0/33", "ten/8", "10.0.0.1/32", "fd00::/129"] {
            assert!(text.parse::<Cidr>().unwrap_err().contains("10.88.0.0/16"), "{text}");
        }
        let six: Cidr = "fd00::/64".parse().unwrap();
        assert_eq!(AddressPool::default().allocate(six), Some("fd00::2".parse().unwrap()));
    }
}
