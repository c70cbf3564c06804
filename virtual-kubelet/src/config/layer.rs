//! Configuration layers. Each layer is validated on its own, so that problems can name their source.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;
use serde_json::{Map, Value};
use vk_provider::config::{explain, nearest};

use super::{
    Problem, Settings,
    options::{ConfigOption, Kind, OPTIONS},
};

/// The configuration from one source, in the structure of the file. Only contains what [`Settings`] accepts.
#[derive(Clone, Default, PartialEq)]
pub struct Layer(Map<String, Value>);

/// tensile-kube's variable for one node label: `key:value`.
const NODE_LABEL: &str = "VKUBELET_NODE_LABEL";

/// All layers; later ones win.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerStack {
    /// Defaults of the command, such as the provider of `dev`.
    pub base: Layer,
    /// The configuration file.
    pub file: Layer,
    /// The environment.
    pub env: Layer,
    /// The command line.
    pub flags: Layer,
}

// === impl Layer ===

impl Layer {
    /// Parses a configuration file. Returns the valid part and all problems.
    pub fn from_yaml(text: &str, path: &str) -> (Self, Vec<Problem>) {
        // Only `true` and `false` are booleans: `off` disables an address, and `no` is a valid label value.
        let options = serde_saphyr::options! { strict_booleans: true };
        let value = match serde_saphyr::from_str_with_options::<Value>(text, options) {
            Ok(Value::Null) => return Self::default().without_problems(),
            Ok(Value::Object(map)) => Value::Object(without_nulls(map)),
            Ok(_) => {
                let message = "is not a configuration: write `key: value` lines";
                return (Self::default(), vec![Problem::new("config", message).from_source(path)]);
            }
            Err(error) => {
                let problem = Problem::new("config", explain(&error.to_string())).from_source(path);
                return (Self::default(), vec![problem]);
            }
        };
        let (layer, problems) = Self::checked(value);
        (layer, problems.into_iter().map(|problem| problem.from_source(path)).collect())
    }

    /// Reads the environment through a lookup function. Empty variables count as unset.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> (Self, Vec<Problem>) {
        let mut layer = Self::default();
        let mut problems = Vec::new();
        for setting in OPTIONS {
            let found = [setting.variable].iter().chain(setting.old_variables).find_map(|variable| {
                let text =
                    lookup(variable).filter(|text| !text.is_empty() && !is_service_link(setting, text))?;
                Some((*variable, text))
            });
            if let Some((variable, text)) = found {
                // tensile-kube's variable has one label, written with a colon.
                let text = if variable == NODE_LABEL { text.replacen(':', "=", 1) } else { text };
                problems.extend(layer.add(setting, &[text], &format!("environment {variable}")));
            }
        }
        (layer, problems)
    }

    /// Reads flags with their values.
    pub fn from_flags<'a>(
        flags: impl IntoIterator<Item = (&'a ConfigOption, &'a [String])>,
    ) -> (Self, Vec<Problem>) {
        let mut layer = Self::default();
        let mut problems = Vec::new();
        for (setting, texts) in flags {
            problems.extend(layer.add(setting, texts, &format!("--{}", setting.flag)));
        }
        (layer, problems)
    }

    /// Reads values in the structure of the file.
    pub fn from_value(value: Value) -> (Self, Vec<Problem>) {
        Self::checked(value)
    }

    /// Whether this layer sets a top-level key.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Merges another layer on top of this one.
    #[must_use]
    pub fn overlaid_with(mut self, later: Self) -> Self {
        merge(&mut self.0, later.0);
        self
    }

    fn without_problems(self) -> (Self, Vec<Problem>) {
        (self, Vec::new())
    }

    /// Adds one option, unless its value is invalid.
    fn add(&mut self, setting: &ConfigOption, texts: &[String], source: &str) -> Option<Problem> {
        let fail = |message: String| Some(Problem::new(setting.key, message).from_source(source));
        let value = match parse_value(setting.kind, texts) {
            Ok(value) => value,
            Err(message) => return fail(message),
        };
        let nested = setting
            .key
            .rsplit('.')
            .fold(value, |value, key| Value::Object(Map::from_iter([(key.to_owned(), value)])));
        match Settings::deserialize(&nested) {
            Ok(_) => {
                if let Value::Object(map) = nested {
                    merge(&mut self.0, map);
                }
                None
            }
            Err(error) => fail(error.to_string()),
        }
    }

    /// Finds all problems, not only the first: each invalid value is removed, and the rest is parsed again.
    fn checked(mut value: Value) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        while let Err(error) = serde_path_to_error::deserialize::<_, Settings>(&value) {
            let mut path: Vec<Step> = error.path().iter().map(Step::from).collect();
            let message = error.inner().to_string();
            if let Some((unknown, known)) = unknown_field(&message) {
                // Depending on the deserializer, the path ends at the section or at the key.
                if path.last() != Some(&Step::Key(unknown.to_owned())) {
                    path.push(Step::Key(unknown.to_owned()));
                }
                let guess = nearest(unknown, known.iter().copied());
                let advice = match guess {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!("known: {}", known.join(", ")),
                };
                problems
                    .push(Problem::new(format_path(&path), format!("unknown key `{unknown}` ({advice})")));
            } else {
                let advice = if message.ends_with("expected a string") { ": write it in quotes" } else { "" };
                problems.push(Problem::new(format_path(&path), message + advice));
            }
            if !remove_at(&mut value, &path) {
                // Nothing could be removed; avoid an endless loop.
                value = Value::Object(Map::new());
            }
        }
        match value {
            Value::Object(map) => (Self(map), problems),
            _ => (Self::default(), problems),
        }
    }
}

impl fmt::Debug for Layer {
    /// Shows only keys, because a provider's section may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

// === impl LayerStack ===

impl LayerStack {
    /// Merges all layers.
    pub(super) fn merged(&self) -> Result<Settings, Problem> {
        let mut all = Map::new();
        for layer in [&self.base, &self.file, &self.env, &self.flags] {
            merge(&mut all, layer.0.clone());
        }
        Settings::deserialize(Value::Object(all)).map_err(|error| Problem::new("config", error.to_string()))
    }
}

/// A step of a path into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl From<&serde_path_to_error::Segment> for Step {
    fn from(segment: &serde_path_to_error::Segment) -> Self {
        match segment {
            serde_path_to_error::Segment::Seq { index } => Self::Index(*index),
            other => Self::Key(other.to_string()),
        }
    }
}

fn format_path(path: &[Step]) -> String {
    let text: String = path
        .iter()
        .map(|step| match step {
            Step::Index(index) => format!("[{index}]"),
            Step::Key(key) => format!(".{key}"),
        })
        .collect();
    if text.is_empty() { "config".into() } else { text.trim_start_matches('.').to_owned() }
}

/// Removes the value at a path. List items are emptied instead, so that the others keep their indices.
fn remove_at(value: &mut Value, path: &[Step]) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    let parent = parents.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    });
    match (parent, last) {
        (Some(Value::Object(map)), Step::Key(key)) => map.remove(key).is_some(),
        (Some(Value::Array(items)), Step::Index(index)) => match items.get_mut(*index) {
            Some(item) if !item.as_object().is_some_and(Map::is_empty) => {
                *item = Value::Object(Map::new());
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Extracts the unknown key and the known keys from serde's message.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let (unknown, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let known = rest.split_once("expected ").map_or("", |(_, known)| known);
    Some((unknown, known.split('`').skip(1).step_by(2).collect()))
}

/// Converts text to a value of the file.
fn parse_value(kind: Kind, texts: &[String]) -> Result<Value, String> {
    let last = texts.last().map_or("", String::as_str);
    match kind {
        Kind::Text | Kind::Path | Kind::Duration => Ok(last.into()),
        Kind::Number => last.parse::<i64>().map(Value::from).map_err(|_| format!("`{last}` is not a number")),
        Kind::Switch => match last.to_ascii_lowercase().as_str() {
            "true" | "1" | "t" | "yes" | "on" => Ok(true.into()),
            "false" | "0" | "f" | "no" | "off" => Ok(false.into()),
            _ => Err(format!("`{last}` is neither true nor false")),
        },
        Kind::Map => {
            let mut map = BTreeMap::new();
            for pair in texts.iter().flat_map(|text| text.split(',')).filter(|pair| !pair.is_empty()) {
                let (key, value) =
                    pair.split_once('=').ok_or_else(|| format!("`{pair}` is not `key=value`"))?;
                map.insert(key.trim(), value.trim());
            }
            serde_json::to_value(map).map_err(|error| error.to_string())
        }
        Kind::List => {
            let items = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
            Ok(items.filter(|item| !item.is_empty()).collect())
        }
    }
}

/// Whether Kubernetes set the variable for a Service with a matching name: a service `vk` sets `VK_PORT=tcp://10.0.0.1:443` in
/// every pod of its namespace.
fn is_service_link(setting: &ConfigOption, text: &str) -> bool {
    setting.key == "port" && ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Merges `from` into `into`: values are replaced, sections and maps are merged by key.
fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) if key != "providerConfig" => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Removes keys without a value, except in the provider's section.
fn without_nulls(map: Map<String, Value>) -> Map<String, Value> {
    map.into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| {
            let value = match value {
                Value::Object(inner) if key != "providerConfig" => Value::Object(without_nulls(inner)),
                Value::Array(items) => Value::Array(
                    items
                        .into_iter()
                        .map(|item| match item {
                            Value::Object(inner) => Value::Object(without_nulls(inner)),
                            other => other,
                        })
                        .collect(),
                ),
                other => other,
            };
            (key, value)
        })
        .collect()
}

#[cfg(test)]
mod tests;
