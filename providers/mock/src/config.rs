//! The configuration: one section for all nodes, or sections by node name as in the Go mock.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;
use vk_provider::{Config, Error, Quantity, Result, config::explain};

use crate::{
    ability::fit::FitScript,
    explanation::FieldScript,
    fault::{Call, Fault},
    inventory::GroupScript,
    lifecycle::Lifecycle,
    quantity,
    simulator::Cidr,
};

/// The section for nodes without one of their own.
const DEFAULT: &str = "default";

/// The configuration of one node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Capacity by resource name.
    pub capacity: BTreeMap<String, Quantity>,
    /// `spec.providerID` of the node.
    pub provider_id: Option<String>,
    /// The range of pod addresses.
    pub pod_cidr: Cidr,
    /// The lifecycle of pods.
    pub life: Lifecycle,
    /// Initial faults.
    pub faults: HashMap<Call, Fault>,
    /// How it answers whether pods fit.
    pub fit: FitScript,
    /// Whether creation waits for the files of volumes. Requests a token for each pod that mounts one.
    pub volumes: bool,
    /// The socket of the backend process; `None` to keep pods in this process.
    pub backend: Option<PathBuf>,
    /// What `virtual-kubelet explain-pod` says about fields of the pod spec.
    pub fields: BTreeMap<String, FieldScript>,
    /// What `virtual-kubelet groups` lists; `None` if there is nothing to list.
    pub groups: Option<Vec<GroupScript>>,
}

/// A section as written by the user.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Section {
    cpu: Text,
    memory: Text,
    pods: Text,
    others: BTreeMap<String, Text>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    life: Lifecycle,
    faults: BTreeMap<String, Fault>,
    fit: FitScript,
    volumes: bool,
    backend: Option<PathBuf>,
    fields: BTreeMap<String, FieldScript>,
    groups: Option<Vec<GroupScript>>,
}

/// A string, or a number without quotes.
#[derive(Debug, Default)]
struct Text(String);

// === impl Settings ===

impl Default for Settings {
    /// The defaults of the Go mock.
    fn default() -> Self {
        let section = Section::default();
        section.check().expect("invariant: the defaults are well formed")
    }
}

impl Settings {
    /// Parses the configuration of a node. All sections are checked, including those of other nodes.
    pub fn read(config: &Config, node: &str) -> Result<Self> {
        let Some(top) = config.parse::<BTreeMap<String, Value>>()? else { return Ok(Self::default()) };
        let place = match config.path() {
            Some(path) => format!("provider config {}", path.display()),
            None => "providerConfig".to_owned(),
        };
        if is_section(&top) {
            let section = Value::Object(top.into_iter().collect());
            return read_section(&section)
                .map_err(|why| Error::invalid(format!("{place}: node {node}: {why}")));
        }
        let mut sections = BTreeMap::new();
        for (name, section) in &top {
            let settings = read_section(section)
                .map_err(|why| Error::invalid(format!("{place}: section {name} (node {name}): {why}")))?;
            sections.insert(name.as_str(), settings);
        }
        Ok(sections.remove(node).or_else(|| sections.remove(DEFAULT)).unwrap_or_default())
    }
}

/// Whether the whole file is one section: with sections by name, all values are maps, and no name is a key of a section whose
/// value is a map.
fn is_section(top: &BTreeMap<String, Value>) -> bool {
    top.iter().any(|(key, value)| {
        matches!(key.as_str(), "others" | "life" | "faults" | "fit" | "fields")
            || !(value.is_object() || value.is_null())
    })
}

fn read_section(value: &Value) -> Result<Settings, String> {
    let section = match value {
        Value::Null => Section::default(),
        value => serde_path_to_error::deserialize(value).map_err(|error| {
            let (path, why) = (error.path().to_string(), explain(&error.inner().to_string()));
            if path == "." { why } else { format!("{path}: {why}") }
        })?,
    };
    section.check()
}

// === impl Section ===

impl Section {
    fn check(self) -> Result<Settings, String> {
        let mut capacity = BTreeMap::new();
        let standard = [("cpu", self.cpu, "20"), ("memory", self.memory, "100Gi"), ("pods", self.pods, "20")];
        for (name, Text(text), default) in standard {
            let text = if text.is_empty() { default } else { &text };
            capacity.insert(name.to_owned(), quantity(name, text)?);
        }
        for (name, Text(text)) in self.others {
            let amount = quantity(&format!("others.{name}"), &text)?;
            capacity.insert(name, amount);
        }
        let pod_cidr = match self.pod_cidr {
            Some(text) => Cidr::from_str(&text).map_err(|why| format!("podCIDR: {why}"))?,
            None => Cidr::default(),
        };
        let mut faults = HashMap::new();
        for (name, fault) in self.faults {
            let call = Call::named(&name).map_err(|why| format!("faults: {why}"))?;
            fault.check().map_err(|why| format!("faults.{name}: {why}"))?;
            faults.insert(call, fault);
        }
        let provider_id = self.provider_id.filter(|id| !id.is_empty());
        self.fit.check().map_err(|why| format!("fit: {why}"))?;
        for (index, group) in self.groups.iter().flatten().enumerate() {
            group.check().map_err(|why| format!("groups[{index}].{why}"))?;
        }
        let Self { life, fit, volumes, backend, fields, groups, .. } = self;
        Ok(Settings { capacity, provider_id, pod_cidr, life, faults, fit, volumes, backend, fields, groups })
    }
}

fn quantity(key: &str, text: &str) -> Result<Quantity, String> {
    quantity::parse(text).map_err(|why| format!("{key}: {why}"))
}

// === impl Text ===

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            other => Err(D::Error::custom(format!("{other} is not a quantity"))),
        }
    }
}

#[cfg(test)]
mod tests;
