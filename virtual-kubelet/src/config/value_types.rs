//! Values that check themselves when they are read, so that the message names the place and says what to write.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use tracing_subscriber::EnvFilter;

use super::kubernetes_names::check_subdomain;

/// Reading and writing as text, through `FromStr` and `Display`.
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

/// An enumeration that is written as text: the first spelling of each is ours, the others are understood.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal $(| $other:literal)*),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// As it is written.
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
    /// What the pods of a node run on.
    Os {
        /// Linux.
        Linux = "linux" | "Linux",
        /// Windows.
        Windows = "windows" | "Windows",
    }
}

choice! {
    /// What a taint does to pods that do not tolerate it.
    TaintEffect {
        /// They are not scheduled.
        NoSchedule = "NoSchedule",
        /// They are scheduled only if no other node will do.
        PreferNoSchedule = "PreferNoSchedule",
        /// They are evicted.
        NoExecute = "NoExecute",
    }
}

choice! {
    /// What becomes of the Node object when the process stops.
    OnShutdown {
        /// It is marked NotReady and stays, with its pods.
        Leave = "leave",
        /// It is deleted.
        Delete = "delete",
    }
}

choice! {
    /// What a node checks before it takes a pod.
    Admission {
        /// What suits the provider: `placement` for one with elastic capacity, else `full`.
        Auto = "auto",
        /// All that a kubelet checks.
        Full = "full",
        /// Only where the pod wants to be: operating system, affinity, taints.
        Placement = "placement",
        /// Nothing.
        Off = "off",
    }
}

choice! {
    /// What becomes of pods of DaemonSets.
    DaemonSets {
        /// They run like all others.
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
    /// Whether a process reads what pods refer to as the node that they are bound to.
    ImpersonateNodes {
        /// Where it may, and is no node itself.
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

/// A TCP port that can be told to others: 1 to 65535.
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

/// How much is logged: the name of a level, or filter directives such as `info,vk_node=debug`.
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

    /// In the notation of `tracing_subscriber::EnvFilter`.
    pub fn directives(&self) -> &str {
        &self.directives
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The names of logrus. It has two levels above error, at which a process ends; ours logs an error then.
        let directives = match text.to_ascii_lowercase().as_str() {
            "fatal" | "panic" => "error".to_owned(),
            "warning" => "warn".to_owned(),
            name @ ("trace" | "debug" | "info" | "warn" | "error" | "off") => name.to_owned(),
            // A single unknown word would be taken for the name of a module, and hide a mistyped level.
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
    fn both_spellings_of_an_operating_system_are_understood() {
        assert_eq!("Linux".parse(), Ok(Os::Linux));
        assert_eq!("windows".parse(), Ok(Os::Windows));
        assert!("plan9".parse::<Os>().unwrap_err().contains("linux, windows"));
        assert!(
            "Never".parse::<TaintEffect>().unwrap_err().contains("NoSchedule, PreferNoSchedule, NoExecute")
        );
    }

    #[test]
    fn ports_say_their_range() {
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
