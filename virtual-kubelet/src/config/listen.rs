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
        let (host, port) = text.rsplit_once(':').ok_or_else(fail)?;
        let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host) {
            "" => None,
            "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
            ip => Some(ip.parse().map_err(|_| fail())?),
        };
        Ok(Self(Some(Listen { address, port: port.parse().map_err(|_| fail())? })))
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(Listen { address: None, port }) => write!(f, ":{port}"),
            Some(Listen { address: Some(ip), port }) => write!(f, "{}", std::net::SocketAddr::new(ip, port)),
        }
    }
}

text_serde!(AdminAddr);

impl JsonSchema for AdminAddr {
    fn schema_name() -> Cow<'static, str> {
        "AdminAddr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "`HOST:PORT`, `:PORT`, or `off`." })
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
}
