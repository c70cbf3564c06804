//! The configuration of a provider: a file, or a section of the main configuration.

mod alias;
mod flat_toml;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use self::alias::{AliasKind, ConfigAlias};
use crate::{Error, Result};

/// The unparsed configuration of a provider.
#[derive(Clone, Default, PartialEq)]
pub enum Config {
    /// None: the provider uses its defaults.
    #[default]
    Default,
    /// A file: YAML or JSON, or TOML without tables if its name ends with `.toml`.
    File {
        /// Its path, for messages.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// A file, and keys from elsewhere, such as flags and the environment, which override those of the file.
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
        self.deserialize(None)
    }

    /// As [`parse`](Self::parse), for a provider whose TOML file has other keys than its YAML file, as that of a Go provider: `toml_keys` are
    /// the keys of a TOML file, and what they set. Other keys of a TOML file are errors.
    pub fn parse_with_toml<T: DeserializeOwned>(&self, toml_keys: &[ConfigAlias]) -> Result<Option<T>> {
        self.deserialize(Some(toml_keys))
    }

    fn deserialize<T: DeserializeOwned>(&self, toml_keys: Option<&[ConfigAlias]>) -> Result<Option<T>> {
        match self {
            Self::Default => Ok(None),
            Self::File { path, text } => read(path, text, toml_keys).map(Some),
            Self::FileWith { path, text, keys } => {
                let written: Value = read(path, text, toml_keys)?;
                let value = merge(written, keys);
                T::deserialize(&value).map(Some).map_err(|error| {
                    // An error in the file itself is reported with its line.
                    let alone = read::<T>(path, text, toml_keys).err();
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

    /// Overrides some keys. Sections are merged, lists are replaced.
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
                merge_sections(&mut before, &keys);
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

impl fmt::Debug for Config {
    /// Shows no values, because they may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("Default"),
            Self::File { path, .. } => f.debug_tuple("File").field(path).finish(),
            Self::FileWith { path, keys, .. } => {
                let names: Vec<&String> = keys.keys().collect();
                f.debug_tuple("FileWith").field(path).field(&names).finish()
            }
            Self::Inline(value) => {
                let names: Vec<&String> = value.as_object().into_iter().flat_map(Map::keys).collect();
                f.debug_tuple("Inline").field(&names).finish()
            }
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path, text: &str, toml_keys: Option<&[ConfigAlias]>) -> Result<T> {
    let fail = |why: &str| Error::invalid(format!("provider config {}: {why}", path.display()));
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("toml")) {
        let section = read_toml(text, toml_keys).map_err(|why| fail(&why))?;
        return T::deserialize(Value::Object(section)).map_err(|error| fail(&explain(&error.to_string())));
    }
    serde_saphyr::from_str(text).map_err(|error| fail(&explain(&error.to_string())))
}

/// The configuration in a TOML file. Without aliases its keys are those of the configuration.
fn read_toml(text: &str, aliases: Option<&[ConfigAlias]>) -> Result<Map<String, Value>, String> {
    let mut section = Map::new();
    for flat_toml::Entry { line, key, value } in flat_toml::read(text)? {
        let Some(aliases) = aliases else {
            section.insert(key, value);
            continue;
        };
        let Some(alias) = aliases.iter().find(|alias| alias.name == key) else {
            let known: Vec<&str> = aliases.iter().map(|alias| alias.name).collect();
            let advice = match nearest(&key, known.iter().copied()) {
                Some(guess) => format!("did you mean `{guess}`?"),
                None => format!("known: {}", known.join(", ")),
            };
            return Err(format!("line {line}: unknown key `{key}` ({advice})"));
        };
        let converted = alias.convert(&value).map_err(|why| format!("line {line}: {key}: {why}"))?;
        if let Some(value) = converted {
            alias.set(&mut section, value);
        }
    }
    Ok(section)
}

/// Overrides keys of a section. A value that is not a section is returned unchanged; deserialising it fails.
fn merge(value: Value, keys: &Map<String, Value>) -> Value {
    let mut section = match value {
        Value::Null => Map::new(),
        Value::Object(section) => section,
        other => return other,
    };
    merge_sections(&mut section, keys);
    Value::Object(section)
}

fn merge_sections(section: &mut Map<String, Value>, keys: &Map<String, Value>) {
    for (key, value) in keys {
        match (section.get_mut(key), value) {
            (Some(Value::Object(inner)), Value::Object(more)) => merge_sections(inner, more),
            _ => {
                section.insert(key.clone(), value.clone());
            }
        }
    }
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
mod tests;
