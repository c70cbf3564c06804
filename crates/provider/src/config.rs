//! The provider's own configuration: a file that the user names, or a section of the main configuration.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, Result};

/// What the user configured for a provider, unread.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Config {
    /// Nothing: the provider uses its defaults.
    #[default]
    Default,
    /// A file, with its text. YAML and JSON are read by [`Config::parse`]; other formats by the provider itself.
    File {
        /// Where it is, for messages.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// A section of the main configuration.
    Inline(Value),
}

impl Config {
    /// Reads the configuration into the provider's type, which should carry `#[serde(deny_unknown_fields)]`; `None` when
    /// the user gave none. The error is `Invalid` and says where the mistake is; for an unknown key it names the nearest
    /// known one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match self {
            Self::Default => Ok(None),
            Self::File { path, text } => serde_saphyr::from_str(text).map(Some).map_err(|error| {
                Error::invalid(format!("provider config {}: {}", path.display(), explain(&error.to_string())))
            }),
            Self::Inline(value) => T::deserialize(value)
                .map(Some)
                .map_err(|error| Error::invalid(format!("providerConfig: {}", explain(&error.to_string())))),
        }
    }

    /// Where the configuration came from, if from a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// The message of a deserialiser on one line, with a guess at what an unknown key was meant to be.
pub fn explain(message: &str) -> String {
    // The YAML reader adds a picture of the place below its first line, which already names line and column.
    let message = message.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let guess = message.split_once("unknown field `").and_then(|(_, rest)| {
        let (unknown, rest) = rest.split_once('`')?;
        let known = rest.split_once("expected ")?.1.trim_start_matches("one of ");
        nearest(
            unknown,
            known.split([',', ' ']).map(|name| name.trim_matches('`')).filter(|name| *name != "or"),
        )
    });
    match guess {
        Some(name) => format!("{message} (did you mean `{name}`?)"),
        None => message.to_owned(),
    }
}

/// The known name that is most like a mistyped one, if any is like it at all.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let normal = |text: &str| text.to_lowercase().replace(['-', '_'], "");
    let wanted = normal(name);
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&wanted, &normal(candidate)), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Size {
        cpu: String,
        memory: Option<String>,
    }

    fn file(text: &str) -> Config {
        Config::File { path: "mock.yaml".into(), text: text.into() }
    }

    #[test]
    fn yaml_and_json_files_are_read_alike() {
        let expected = Some(Size { cpu: "2".into(), memory: Some("1Gi".into()) });
        assert_eq!(file("cpu: \"2\"\nmemory: 1Gi\n").parse::<Size>().unwrap(), expected);
        assert_eq!(file(r#"{"cpu": "2", "memory": "1Gi"}"#).parse::<Size>().unwrap(), expected);
        let inline = Config::Inline(serde_json::json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(inline.parse::<Size>().unwrap(), expected);
        assert_eq!(Config::Default.parse::<Size>().unwrap(), None);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_file_and_the_nearest_key() {
        for config in [
            file("cpu: \"2\"\nmemmory: 1Gi\n"),
            Config::Inline(serde_json::json!({"cpu": "2", "memmory": "1"})),
        ] {
            let error = config.parse::<Size>().unwrap_err();
            assert_eq!(*error.kind(), crate::error::Kind::Invalid);
            assert!(error.message().contains("memmory"), "{error}");
            assert!(error.message().contains("did you mean `memory`?"), "{error}");
        }
        assert!(file("cpuu: 1").parse::<Size>().unwrap_err().message().contains("mock.yaml"));
    }

    #[test]
    fn a_key_unlike_all_others_gets_no_guess() {
        assert_eq!(nearest("zzz", ["cpu", "memory"]), None);
        assert_eq!(nearest("node-name", ["nodeName", "memory"]), Some("nodeName"));
    }
}
