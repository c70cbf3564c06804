//! Value types that validate themselves when they are parsed, so that errors name the key and say what to write.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use tracing_subscriber::EnvFilter;

use super::kubernetes_names::check_subdomain;

/// Implements serde through `FromStr` and `Display`.
macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

pub(super) use text_serde;

/// Defines an enum with text values. The first spelling of each variant is canonical; the others are accepted.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal $(| $other:literal)*),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// The canonical text.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text $(| $other)* => Ok(Self::$variant),)+
                    _ => Err(format!("`{text}` is none of {}", [$($text),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        text_serde!($name);

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "enum": [$($text $(, $other)*),+] })
            }
        }
    };
}

choice! {
    /// How pods with the scheduling gate of placement are placed.
    Gates {
        /// They are left alone.
        Off = "off",
        /// By what nodes answer.
        Estimate = "estimate",
        /// By a trial: the scheduler of the lower cluster has to place a pod first.
        Trial = "trial",
    }
}

choice! {
    /// Which of several nodes with room is better.
    Prefer {
        /// The emptiest.
        Spread = "spread",
        /// The fullest.
        Pack = "pack",
    }
}

choice! {
    /// Operating system of a node's pods.
    Os {
        /// Linux.
        Linux = "linux" | "Linux",
        /// Windows.
        Windows = "windows" | "Windows",
    }
}

choice! {
    /// Effect of a taint on pods that do not tolerate it.
    TaintEffect {
        /// They are not scheduled.
        NoSchedule = "NoSchedule",
        /// They are scheduled only if no other node fits.
        PreferNoSchedule = "PreferNoSchedule",
        /// They are evicted.
        NoExecute = "NoExecute",
    }
}

choice! {
    /// What happens to the Node object when the process stops.
    OnShutdown {
        /// It is kept with its pods and marked NotReady.
        Leave = "leave",
        /// It is deleted.
        Delete = "delete",
    }
}

choice! {
    /// Admission checks of a node.
    Admission {
        /// `placement` for providers with elastic capacity, otherwise `full`.
        Auto = "auto",
        /// All checks of a kubelet.
        Full = "full",
        /// Only operating system, affinity and taints.
        Placement = "placement",
        /// Nothing.
        Off = "off",
    }
}

choice! {
    /// What happens to DaemonSet pods.
    DaemonSets {
        /// They run like other pods.
        Run = "run",
        /// They fail, with a reason.
        Fail = "fail",
        /// They stay Pending, with a reason.
        Hold = "hold",
    }
}

choice! {
    /// What becomes of pods that the provider refuses for good.
    RefusedPods {
        /// They fail, with the reason.
        Fail = "fail",
        /// They stay Pending, with the reason, until they are changed.
        Hold = "hold",
    }
}

choice! {
    /// Whether ConfigMaps and Secrets are read by impersonating the pod's node.
    ImpersonateNodes {
        /// If permitted, and the process does not have a node identity.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}

choice! {
    /// How log lines look.
    LogFormat {
        /// Text on a terminal, JSON elsewhere.
        Auto = "auto",
        /// For people.
        Text = "text",
        /// For machines.
        Json = "json",
    }
}

/// The name of a node: a DNS-1123 subdomain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName(String);

// === impl NodeName ===

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        check_subdomain(text).map_err(|wrong| format!("node name `{text}` {wrong}"))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_serde!(NodeName);

impl JsonSchema for NodeName {
    fn schema_name() -> Cow<'static, str> {
        "NodeName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 253,
            "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
        })
    }
}

/// A TCP port: 1 to 65535.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Port(pub u16);

// === impl Port ===

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let port = value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        port.map(Self)
            .ok_or_else(|| D::Error::custom(format!("{value} is not a port: write a number from 1 to 65535")))
    }
}

impl JsonSchema for Port {
    fn schema_name() -> Cow<'static, str> {
        "Port".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 65535 })
    }
}

/// Log level, or filter directives such as `info,vk_node=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel {
    text: String,
    directives: String,
}

// === impl LogLevel ===

impl LogLevel {
    /// The default.
    pub fn info() -> Self {
        Self { text: "info".into(), directives: "info".into() }
    }

    /// Directives for `tracing_subscriber::EnvFilter`.
    pub fn directives(&self) -> &str {
        &self.directives
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The level names of logrus. Its two levels above error end the process; we log an error instead.
        let directives = match text.to_ascii_lowercase().as_str() {
            "fatal" | "panic" => "error".to_owned(),
            "warning" => "warn".to_owned(),
            name @ ("trace" | "debug" | "info" | "warn" | "error" | "off") => name.to_owned(),
            // An unknown word alone would be parsed as a module name and hide a typo.
            _ if text.contains(['=', ',', '[']) && EnvFilter::builder().parse(text).is_ok() => {
                text.to_owned()
            }
            _ => {
                return Err(format!(
                    "`{text}` is not a log level: write trace, debug, info, warn, error, fatal, panic, or directives such as \
                     `info,vk_node=debug`"
                ));
            }
        };
        Ok(Self { text: text.to_owned(), directives })
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_serde!(LogLevel);

impl JsonSchema for LogLevel {
    fn schema_name() -> Cow<'static, str> {
        "LogLevel".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "A level, or directives such as `info,vk_node=debug`." })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_an_operating_system_are_accepted() {
        assert_eq!("Linux".parse(), Ok(Os::Linux));
        assert_eq!("windows".parse(), Ok(Os::Windows));
        assert!("plan9".parse::<Os>().unwrap_err().contains("linux, windows"));
        assert!(
            "Never".parse::<TaintEffect>().unwrap_err().contains("NoSchedule, PreferNoSchedule, NoExecute")
        );
    }

    #[test]
    fn invalid_ports_name_the_range() {
        assert_eq!(serde_json::from_str::<Port>("65535").unwrap(), Port(65535));
        for bad in ["0", "65536", "-1", "\"x\"", "1.5"] {
            assert!(
                serde_json::from_str::<Port>(bad).unwrap_err().to_string().contains("1 to 65535"),
                "{bad}"
            );
        }
    }

    #[test]
    fn log_levels_take_the_names_of_go_and_directives() {
        for (text, directives) in [
            ("fatal", "error"),
            ("panic", "error"),
            ("warning", "warn"),
            ("INFO", "info"),
            ("info,vk=debug", "info,vk=debug"),
        ] {
            assert_eq!(text.parse::<LogLevel>().unwrap().directives(), directives);
        }
        for bad in ["debgu", "", "vk=loud"] {
            assert!(bad.parse::<LogLevel>().is_err(), "{bad}");
        }
    }
}
