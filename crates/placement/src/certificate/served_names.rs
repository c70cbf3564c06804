//! The names and addresses under which clients reach the servers.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustls::pki_types::DnsName;

use crate::policy::NAME;

/// The names and addresses that the leaf is issued for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedNames {
    /// In lower case.
    pub dns: BTreeSet<String>,
    /// IP addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// A text that is neither a DNS name nor an IP address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a DNS name nor an IP address: write it as in a URL, without scheme and port")]
pub struct InvalidName(String);

// === impl ServedNames ===

impl ServedNames {
    /// The names of the Service in a namespace, and those of the local host.
    pub fn of_service(namespace: &str) -> Self {
        let dns = [format!("{NAME}.{namespace}.svc"), format!("{NAME}.{namespace}"), "localhost".to_owned()];
        Self { dns: dns.into(), addresses: [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into() }
    }

    /// Adds a DNS name or an IP address, which may be in brackets.
    pub fn add(&mut self, name: &str) -> Result<(), InvalidName> {
        let unbracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        if let Ok(address) = unbracketed.unwrap_or(name).parse() {
            self.addresses.insert(address);
            return Ok(());
        }
        // Clients that compare names octet by octet do so in lower case, and a final dot is not part of the name in a certificate.
        let dns = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        // A name of digits and dots is an address with a mistake.
        let looks_like_address =
            dns.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if looks_like_address || DnsName::try_from(dns.as_str()).is_err() {
            return Err(InvalidName(name.to_owned()));
        }
        self.dns.insert(dns);
        Ok(())
    }

    /// Whether all names and addresses of the other ones are among these.
    pub fn contains(&self, other: &Self) -> bool {
        other.dns.is_subset(&self.dns) && other.addresses.is_subset(&self.addresses)
    }
}

impl fmt::Display for ServedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses.iter().map(ToString::to_string);
        f.write_str(&self.dns.iter().cloned().chain(addresses).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_told_apart() {
        let mut names = ServedNames::default();
        for name in ["Placement.Example.com.", "10.0.0.1", "[fd00::1]", "fd00::2", "node-1"] {
            names.add(name).unwrap();
        }
        assert_eq!(names.to_string(), "node-1, placement.example.com, 10.0.0.1, fd00::1, fd00::2");
    }

    #[test]
    fn a_name_is_looked_up_as_it_was_added() {
        let names = ServedNames::of_service("infra");
        for (name, is_there) in [
            ("Virtual-Kubelet-Placement.infra.svc", true),
            ("[::1]", true),
            ("placement", false),
            ("10.0.0.1", false),
        ] {
            let mut wanted = ServedNames::default();
            wanted.add(name).unwrap();
            assert_eq!(names.contains(&wanted), is_there, "{name}");
        }
    }

    #[test]
    fn what_no_client_can_call_is_refused() {
        for name in [
            "",
            "https://placement",
            "placement:8443",
            "10.0.0.256",
            "a..b",
            "*.example.com",
            "-a",
            "Größe",
            "a b",
        ] {
            let error = ServedNames::default().add(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?} is neither")), "{error}");
        }
    }

    #[test]
    fn the_service_is_served_under_the_name_that_the_api_server_uses() {
        assert_eq!(
            ServedNames::of_service("infra").to_string(),
            "localhost, virtual-kubelet-placement.infra, virtual-kubelet-placement.infra.svc, 127.0.0.1, ::1"
        );
    }
}
