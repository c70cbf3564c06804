//! The configuration of a provider: a file, or a section of the main configuration.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The unparsed configuration of a provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Config {
    /// None: the provider uses its defaults.
    #[default]
    Default,
    /// A file. [`Config::parse`] reads YAML and JSON; the provider itself reads other formats.
    File {
        /// Its path, for messages.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// A file, and keys from elsewhere, such as flags, which override those of the file.
    FileWith {
        /// Its path, for messages.
        path: PathBuf,
        /// Its content.
        text: String,
        /// The overriding keys.
        keys: Map<String, Value>,
    },
    /// A section of the main configuration.
    Inline(Value),
}

impl Config {
    /// Deserialises the configuration into the provider's type, which should have `#[serde(deny_unknown_fields)]`; `None` if
    /// there is no configuration. The error is `Invalid` and names the position; for an unknown key it suggests the nearest
    /// known one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match self {
            Self::Default => Ok(None),
            Self::File { path, text } => read(path, text).map(Some),
            Self::FileWith { path, text, keys } => {
                let written: Value = read(path, text)?;
                let value = merge(written, keys);
                T::deserialize(&value).map(Some).map_err(|error| {
                    // An error in the file itself is reported with its line.
                    let alone = read::<T>(path, text).err();
                    let names: Vec<&str> = keys.keys().map(String::as_str).collect();
                    let message = || {
                        let (path, names) = (path.display(), names.join(", "));
                        format!("provider config {path} with {names}: {}", explain(&error.to_string()))
                    };
                    alone.unwrap_or_else(|| Error::invalid(message()))
                })
            }
            Self::Inline(value) => T::deserialize(value)
                .map(Some)
                .map_err(|error| Error::invalid(format!("providerConfig: {}", explain(&error.to_string())))),
        }
    }

    /// Overrides some keys of the top level.
    #[must_use]
    pub fn with(self, keys: Map<String, Value>) -> Self {
        if keys.is_empty() {
            return self;
        }
        match self {
            Self::Default => Self::Inline(Value::Object(keys)),
            Self::Inline(value) => Self::Inline(merge(value, &keys)),
            Self::File { path, text } => Self::FileWith { path, text, keys },
            Self::FileWith { path, text, keys: mut before } => {
                before.extend(keys);
                Self::FileWith { path, text, keys: before }
            }
        }
    }

    /// The path of the configuration, if it is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::FileWith { path, .. } => Some(path),
            Self::Default | Self::Inline(_) => None,
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    serde_saphyr::from_str(text).map_err(|error| {
        Error::invalid(format!("provider config {}: {}", path.display(), explain(&error.to_string())))
    })
}

/// Overrides keys of a section. A value that is not a section is returned unchanged; deserialising it fails.
fn merge(value: Value, keys: &Map<String, Value>) -> Value {
    let mut section = match value {
        Value::Null => Map::new(),
        Value::Object(section) => section,
        other => return other,
    };
    section.extend(keys.clone());
    Value::Object(section)
}

/// The first line of a deserialisation error, with a suggestion for an unknown key.
pub fn explain(message: &str) -> String {
    // The YAML reader adds an excerpt below its first line, which already names line and column.
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

/// The known name that is most similar to a mistyped one, if any is similar.
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
    fn yaml_and_json_are_parsed_alike() {
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
    fn overriding_keys_win_and_errors_keep_their_position() {
        let keys = |value: serde_json::Value| value.as_object().unwrap().clone();
        let flags = || keys(serde_json::json!({"cpu": "4"}));
        let expected = |memory: Option<&str>| Some(Size { cpu: "4".into(), memory: memory.map(Into::into) });
        assert_eq!(Config::Default.with(flags()).parse::<Size>().unwrap(), expected(None));
        assert_eq!(Config::Default.with(Map::new()), Config::Default);
        let inline = Config::Inline(serde_json::json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(inline.with(flags()).parse::<Size>().unwrap(), expected(Some("1Gi")));
        for text in ["cpu: \"2\"\nmemory: 1Gi\n", "memory: 1Gi\n"] {
            let config = file(text).with(keys(serde_json::json!({"cpu": "3"}))).with(flags());
            assert_eq!(config.parse::<Size>().unwrap(), expected(Some("1Gi")), "{text}");
            assert_eq!(config.path(), Some(Path::new("mock.yaml")));
        }
        assert_eq!(file("\n").with(flags()).parse::<Size>().unwrap(), expected(None), "an empty file");
        for (text, words) in [
            ("cpu: \"2\"\nmemmory: 1Gi\n", ["mock.yaml", "line 2", "did you mean `memory`?"]),
            ("just text", ["mock.yaml", "line 1", "expected"]),
            ("cpu: [", ["mock.yaml", "line 1", ""]),
        ] {
            let error = file(text).with(flags()).parse::<Size>().unwrap_err();
            assert!(words.iter().all(|word| error.message().contains(word)), "{words:?} in {error}");
        }
        let wrong = file("memory: 1Gi\n").with(keys(serde_json::json!({"cpu": 4})));
        let error = wrong.parse::<Size>().unwrap_err();
        assert!(error.message().contains("mock.yaml"), "{error}");
        let wrong = file("cpu: \"2\"\n").with(keys(serde_json::json!({"cpu": 4})));
        let error = wrong.parse::<Size>().unwrap_err();
        assert!(error.message().contains("mock.yaml with cpu: "), "{error}");
    }

    #[test]
    fn a_key_unlike_all_others_gets_no_suggestion() {
        assert_eq!(nearest("zzz", ["cpu", "memory"]), None);
        assert_eq!(nearest("node-name", ["nodeName", "memory"]), Some("nodeName"));
    }
}
