//! A pod's fields, held against a field policy.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value};

use super::{
    Choice, Choices, Policy, PolicyTable, Row,
    api_fields::{ApiFields, COVERED_TYPES, api_fields, object_type},
};
use crate::plan::Diagnostics;

/// What becomes of the fields that a pod sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Review {
    /// Its fields, in the order of the API types.
    pub fields: Vec<FieldReport>,
}

/// What becomes of a field of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldReport {
    /// Its path, such as `spec.containers[web].startupProbe`.
    pub path: String,
    /// The row: `Container.startupProbe`.
    pub row: &'static str,
    /// What becomes of it.
    pub outcome: Outcome,
    /// How, why, or what to write instead.
    pub result: String,
    /// Whether users are warned.
    pub warns: bool,
}

/// What becomes of a field, after the configuration has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The cloud does it.
    Native,
    /// Done by other means.
    Emulated,
    /// Not done.
    Ignored,
    /// The pod does not run.
    Refused,
    /// Not the cloud's.
    Elsewhere,
}

impl PolicyTable {
    /// What becomes of the fields that a pod sets.
    pub fn review(&self, pod: &Pod, choices: &Choices) -> Review {
        let mut walk = Walk { table: self, choices, fields: api_fields(), reports: Vec::new() };
        if let Some(Ok(Value::Object(spec))) = pod.spec.as_ref().map(serde_json::to_value) {
            walk.object("PodSpec", "PodSpec", "spec", &spec);
        }
        Review { fields: walk.reports }
    }

    fn outcome(row: &Row, choices: &Choices) -> (Outcome, &'static str, bool) {
        match (row.policy, choices.of(row)) {
            (Policy::Native, _) => (Outcome::Native, row.result, false),
            (Policy::Emulated, _) => (Outcome::Emulated, row.result, false),
            (Policy::Ignored, _) | (Policy::IgnoredOrRefused, Choice::Warn) => {
                (Outcome::Ignored, row.result, true)
            }
            (Policy::Refused, _) => (Outcome::Refused, row.result, false),
            (Policy::Elsewhere, _) => (Outcome::Elsewhere, row.result, false),
            (Policy::EmulatedOrRefused, Choice::Warn) => (Outcome::Emulated, row.result, true),
            (Policy::EmulatedOrRefused | Policy::IgnoredOrRefused, Choice::Refuse) => {
                (Outcome::Refused, row.refusal, false)
            }
        }
    }
}

struct Walk<'a> {
    table: &'a PolicyTable,
    choices: &'a Choices,
    fields: &'static ApiFields,
    reports: Vec<FieldReport>,
}

impl Walk<'_> {
    /// The fields of an object of `api_type` at `path`. `prefix` is what the rows of its fields begin with: its type, or the row of a field
    /// of that type.
    fn object(&mut self, api_type: &str, prefix: &str, path: &str, object: &Map<String, Value>) {
        for (field, shape) in self.fields.of(api_type) {
            let Some(value) = object.get(*field).filter(|value| asks(prefix, value)) else { continue };
            let key = format!("{prefix}.{field}");
            let path = format!("{path}.{field}");
            let inner = object_type(shape);
            let covered = inner.filter(|inner| COVERED_TYPES.contains(inner));
            let row = self.table.row(&key);
            if row.is_some_and(|row| row.harmless.iter().any(|literal| literal.matches(value))) {
                continue;
            }
            // A list of containers or volumes says nothing by itself.
            let is_native = row.is_some_and(|row| row.policy == Policy::Native);
            let is_list = covered.is_some() && value.is_array();
            if !(is_list && is_native) {
                self.report(&key, &path, row);
            }
            match (covered, inner) {
                // The rows of the type describe what the cloud does natively.
                (Some(inner), _) if is_native => self.descend(inner, inner, &path, value),
                (None, Some(inner)) if self.has_rows_below(&key) => self.descend(inner, &key, &path, value),
                _ => {}
            }
        }
    }

    fn descend(&mut self, api_type: &str, prefix: &str, path: &str, value: &Value) {
        match value {
            Value::Object(object) => self.object(api_type, prefix, path, object),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    if let Value::Object(object) = item {
                        let name = ["mountPath", "name"].iter().find_map(|key| object.get(*key)?.as_str());
                        let name = name.map_or_else(|| index.to_string(), str::to_owned);
                        self.object(api_type, prefix, &format!("{path}[{name}]"), object);
                    }
                }
            }
            _ => {}
        }
    }

    fn has_rows_below(&self, key: &str) -> bool {
        let below = |row: &Row| row.field.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
        self.table.rows.iter().any(below)
    }

    fn report(&mut self, key: &str, path: &str, row: Option<&'static Row>) {
        let report = match row {
            Some(row) => {
                let (outcome, result, warns) = PolicyTable::outcome(row, self.choices);
                FieldReport {
                    path: path.to_owned(),
                    row: row.field,
                    outcome,
                    result: result.to_owned(),
                    warns,
                }
            }
            // A field of a field of a covered type, without a row: its parent speaks for it.
            None if !is_covered(key) => return,
            None => FieldReport {
                path: path.to_owned(),
                row: "",
                outcome: Outcome::Refused,
                result: format!("{} does not know this field: remove it", self.table.cloud),
                warns: false,
            },
        };
        self.reports.push(report);
    }
}

/// Whether the key is a direct field of a covered type.
fn is_covered(key: &str) -> bool {
    key.split_once('.')
        .is_some_and(|(api_type, rest)| COVERED_TYPES.contains(&api_type) && !rest.contains('.'))
}

/// Whether a value asks for something: a volume can be an empty object, such as `emptyDir: {}`; elsewhere that is the same as nothing.
fn asks(prefix: &str, value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty() || prefix.starts_with("Volume"),
        _ => true,
    }
}

// === impl Review ===

impl Review {
    /// Refusals and warnings for the translation.
    pub fn diagnostics(&self) -> Diagnostics {
        let mut diagnostics = Diagnostics::default();
        for FieldReport { path, outcome, result, warns, .. } in &self.fields {
            if *outcome == Outcome::Refused {
                diagnostics.refuse(path, result);
            } else if *warns {
                let verb = if *outcome == Outcome::Ignored { "ignored: " } else { "" };
                diagnostics.warn(path, format!("{verb}{result}"));
            }
        }
        diagnostics
    }
}

// === impl Outcome ===

impl Outcome {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Emulated => "emulated",
            Self::Ignored => "ignored",
            Self::Refused => "refused",
            Self::Elsewhere => "elsewhere",
        }
    }
}
