//! What the configuration decides about fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vk_provider::config::nearest;

use super::{PolicyTable, Row};

/// The key `fields` of a provider's configuration: a choice for each field whose policy is one. By default a warning.
///
/// A field is named as in the pod (`startupProbe`) or with its type (`Container.startupProbe`), which counts more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Choices(pub BTreeMap<String, Choice>);

/// What becomes of a field with a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Choice {
    /// Emulate or ignore it, with a warning.
    #[default]
    Warn,
    /// Refuse the pod.
    Refuse,
}

impl Choices {
    /// What becomes of a row's field.
    pub fn of(&self, row: &Row) -> Choice {
        let found = self.0.get(row.field).or_else(|| self.0.get(row.name()));
        found.copied().unwrap_or_default()
    }

    /// The first key that names no field with a choice: what is wrong with it, and what is near.
    pub fn check(&self, table: &PolicyTable) -> Result<(), String> {
        let known = |key: &String| table.choices().any(|row| row.field == key || row.name() == key);
        let Some(unknown) = self.0.keys().find(|key| !known(key)) else { return Ok(()) };
        let of_table = |row: &&Row| row.field == unknown || row.name() == unknown;
        if let Some(row) = table.rows.iter().find(of_table) {
            return Err(format!(
                "fields: {unknown} is not a choice: it is {} on {}",
                row.policy.name(),
                table.cloud
            ));
        }
        let advice = nearest(unknown, table.choices().flat_map(|row| [row.name(), row.field]))
            .map_or_else(String::new, |near| format!(", did you mean {near}?"));
        Err(format!("fields: there is no field {unknown}{advice}"))
    }
}
