//! Whether a field policy fits the API types.

use std::collections::BTreeSet;

use super::{
    PolicyTable,
    api_fields::{COVERED_TYPES, api_fields},
};

impl PolicyTable {
    /// What is wrong with the table: fields without a row, rows without a field, repeated rows, rows without a text. Empty if it is
    /// complete; every cloud has a test that it is.
    pub fn problems(&self) -> Vec<String> {
        let fields = api_fields();
        let mut problems = Vec::new();
        let rows: BTreeSet<_> = self.rows.iter().map(|row| row.field).collect();
        for field in fields.covered() {
            if !rows.contains(field.as_str()) {
                problems.push(format!("{field} has no row"));
            }
        }
        let mut seen = BTreeSet::new();
        for row in self.rows {
            let field = row.field;
            let is_covered =
                field.split('.').next().is_some_and(|api_type| COVERED_TYPES.contains(&api_type));
            if !is_covered || fields.shape(field).is_none() {
                problems.push(format!("{field} is not a field of the API"));
            }
            if !seen.insert(field) {
                problems.push(format!("{field} has two rows"));
            }
            if row.result.is_empty() || row.policy.is_choice() == row.refusal.is_empty() {
                problems.push(format!("{field} does not say what happens"));
            }
            if row.sample.is_some_and(|sample| serde_json::from_str::<serde_json::Value>(sample).is_err()) {
                problems.push(format!("the sample of {field} is not JSON"));
            }
        }
        problems
    }
}
