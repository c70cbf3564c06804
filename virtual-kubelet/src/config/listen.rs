//! Addresses to listen on.

use std::{borrow::Cow, fmt, net::IpAddr, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::value_types::text_serde;

/// An address to listen on. Without an IP address: all interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The interface's address.
    pub address: Option<IpAddr>,
    /// The port; 0 lets the system choose.
    pub port: u16,
}

/// Where the process serves health and metrics, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminAddr(pub Option<Listen>);

/// Where clients call a server, so it has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerAddr(pub Listen);

// === impl AdminAddr ===

impl FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if matches!(text, "" | "off") {
            return Ok(Self(None));
        }
        let fail = || {
            format!(
                "`{text}` is not an address to listen on: write `:10255`, `127.0.0.1:10255`, `[::1]:10255` or `off`"
            )
        };
        Listen::parse(text).map(|listen| Self(Some(listen))).ok_or_else(fail)
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(listen) => listen.fmt(f),
        }
    }
}

// === impl Listen ===

impl Listen {
    /// Parses `HOST:PORT` or `:PORT`.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host) {
            "" => None,
            "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
            ip => Some(ip.parse().ok()?),
        };
        Some(Self { address, port: port.parse().ok()? })
    }

    /// Whether both cannot be listened on at the same time.
    pub(super) fn overlaps(self, other: Self) -> bool {
        let all = |listen: Self| listen.address.is_none_or(|address| address.is_unspecified());
        self.port == other.port && (all(self) || all(other) || self.address == other.address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => write!(f, ":{}", self.port),
            Some(ip) => write!(f, "{}", std::net::SocketAddr::new(ip, self.port)),
        }
    }
}

// === impl ServerAddr ===

impl FromStr for ServerAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || {
            format!(
                "`{text}` is not an address to listen on: write `:8443`, `127.0.0.1:8443` or `[::1]:8443`"
            )
        };
        Listen::parse(text).filter(|listen| listen.port != 0).map(Self).ok_or_else(fail)
    }
}

impl fmt::Display for ServerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

text_serde!(AdminAddr);
text_serde!(ServerAddr);

impl JsonSchema for AdminAddr {
    fn schema_name() -> Cow<'static, str> {
        "AdminAddr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "`HOST:PORT`, `:PORT`, or `off`." })
    }
}

impl JsonSchema for ServerAddr {
    fn schema_name() -> Cow<'static, str> {
        "ServerAddr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "`HOST:PORT` or `:PORT`." })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_addresses_are_read_and_written() {
        for (text, shown) in [
            (":10255", ":10255"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("[::1]:80", "[::1]:80"),
            ("", "off"),
            ("off", "off"),
            ("localhost:9", "127.0.0.1:9"),
        ] {
            assert_eq!(text.parse::<AdminAddr>().unwrap().to_string(), shown);
        }
        for bad in ["10255", "host:1", ":70000", ":x"] {
            assert!(bad.parse::<AdminAddr>().unwrap_err().contains("`off`"), "{bad}");
        }
    }

    #[test]
    fn a_server_has_a_port() {
        assert_eq!(":8443".parse::<ServerAddr>().unwrap().to_string(), ":8443");
        assert_eq!("[::1]:8443".parse::<ServerAddr>().unwrap().to_string(), "[::1]:8443");
        for bad in ["", "off", ":0", "8443", "https://a:8443", "placement:8443"] {
            assert!(bad.parse::<ServerAddr>().unwrap_err().contains("`:8443`"), "{bad}");
        }
    }

    #[test]
    fn addresses_with_the_same_port_overlap_unless_both_name_different_interfaces() {
        let listen = |text: &str| text.parse::<ServerAddr>().unwrap().0;
        let overlaps = |one, other| listen(one).overlaps(listen(other));
        assert!(
            overlaps(":1", "10.0.0.1:1")
                && overlaps("0.0.0.0:1", "[::1]:1")
                && overlaps("[::1]:1", "[::1]:1")
        );
        assert!(!overlaps(":1", ":2") && !overlaps("10.0.0.1:1", "127.0.0.1:1"));
    }
}
