//! LayerStack: what one source says, checked by itself so that a mistake is told with the place where it was made.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;
use serde_json::{Map, Value};
use vk_provider::config::{explain, nearest};

use super::{
    Problem, Settings,
    options::{ConfigOption, Kind, OPTIONS},
};

/// What one source says, in the shape of the file. Holds only what [`Settings`] accepts.
#[derive(Clone, Default, PartialEq)]
pub struct Layer(Map<String, Value>);

/// The variable of tensile-kube for one label of the node: `key:value`.
const NODE_LABEL: &str = "VKUBELET_NODE_LABEL";

/// What all sources say; the later ones win.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerStack {
    /// What the command itself presumes, such as the provider of `dev`.
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
    /// Reads a configuration file. Answers with what is right in it, and everything that is wrong.
    pub fn from_yaml(text: &str, path: &str) -> (Self, Vec<Problem>) {
        // Only `true` and `false` are booleans: `off` is what switches an address off, and `no` a fine label.
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

    /// Reads the environment through a function that looks a variable up. An empty variable counts as unset.
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
                // tensile-kube has one label in it, written with a colon.
                let text = if variable == NODE_LABEL { text.replacen(':', "=", 1) } else { text };
                problems.extend(layer.add(setting, &[text], &format!("environment {variable}")));
            }
        }
        (layer, problems)
    }

    /// Reads flags: each with the values that it was given.
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

    /// Takes values in the shape of the file.
    pub fn from_value(value: Value) -> (Self, Vec<Problem>) {
        Self::checked(value)
    }

    /// Whether this layer says something about a key of the top level.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// This layer with another on top.
    #[must_use]
    pub fn overlaid_with(mut self, later: Self) -> Self {
        merge(&mut self.0, later.0);
        self
    }

    fn without_problems(self) -> (Self, Vec<Problem>) {
        (self, Vec::new())
    }

    /// Adds one setting, unless its text is wrong.
    fn add(&mut self, setting: &ConfigOption, texts: &[String], source: &str) -> Option<Problem> {
        let fail = |message: String| Some(Problem::new(setting.key, message).from_source(source));
        let value = match typed(setting.kind, texts) {
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

    /// Finds all mistakes, not only the first: each is taken out, and the rest read again.
    fn checked(mut value: Value) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        while let Err(error) = serde_path_to_error::deserialize::<_, Settings>(&value) {
            let mut path: Vec<Step> = error.path().iter().map(Step::from).collect();
            let message = error.inner().to_string();
            if let Some((unknown, known)) = unknown_field(&message) {
                // Depending on the reader, the path ends at the section or at the key itself.
                if path.last() != Some(&Step::Key(unknown.to_owned())) {
                    path.push(Step::Key(unknown.to_owned()));
                }
                let guess = nearest(unknown, known.iter().copied());
                let advice = match guess {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!("known: {}", known.join(", ")),
                };
                problems.push(Problem::new(show(&path), format!("unknown key `{unknown}` ({advice})")));
            } else {
                let advice = if message.ends_with("expected a string") { ": write it in quotes" } else { "" };
                problems.push(Problem::new(show(&path), message + advice));
            }
            if !take_out(&mut value, &path) {
                // Nothing could be taken out, so the same mistake would be found for ever.
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
    /// Only the keys: a provider's section may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

// === impl LayerStack ===

impl LayerStack {
    /// All layers as one.
    pub(super) fn merged(&self) -> Result<Settings, Problem> {
        let mut all = Map::new();
        for layer in [&self.base, &self.file, &self.env, &self.flags] {
            merge(&mut all, layer.0.clone());
        }
        Settings::deserialize(Value::Object(all)).map_err(|error| Problem::new("config", error.to_string()))
    }
}

/// One step of a path into a value.
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

fn show(path: &[Step]) -> String {
    let text: String = path
        .iter()
        .map(|step| match step {
            Step::Index(index) => format!("[{index}]"),
            Step::Key(key) => format!(".{key}"),
        })
        .collect();
    if text.is_empty() { "config".into() } else { text.trim_start_matches('.').to_owned() }
}

/// Removes what is at a path; items of a list are emptied so that the others keep their numbers.
fn take_out(value: &mut Value, path: &[Step]) -> bool {
    let Some((last, way)) = path.split_last() else { return false };
    let holder = way.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    });
    match (holder, last) {
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

/// The unknown key and the known ones, out of serde's message for it.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let (unknown, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let known = rest.split_once("expected ").map_or("", |(_, known)| known);
    Some((unknown, known.split('`').skip(1).step_by(2).collect()))
}

/// Text as a value of the file.
fn typed(kind: Kind, texts: &[String]) -> Result<Value, String> {
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

/// Whether a variable is one that Kubernetes itself sets for a Service whose name happens to fit: a service `vk` gives
/// every pod of its namespace `VK_PORT=tcp://10.0.0.1:443`.
fn is_service_link(setting: &ConfigOption, text: &str) -> bool {
    setting.key == "port" && ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Later values replace earlier ones; sections and maps are merged key by key.
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

/// A key without a value is as good as none; what is the provider's stays as it is.
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
