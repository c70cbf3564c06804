//! A field policy as a page of the documentation.

use std::fmt::Write;

use super::{Literal, Policy, PolicyTable, Row, api_fields::COVERED_TYPES};

impl PolicyTable {
    /// The table in Markdown: a section for each API type.
    pub fn to_markdown(&self) -> String {
        let mut page = String::new();
        for api_type in COVERED_TYPES {
            let of_type = |row: &&Row| row.field.split('.').next() == Some(api_type);
            let mut rows: Vec<_> = self.rows.iter().filter(of_type).collect();
            rows.sort_by_key(|row| row.field);
            // Writing to a string cannot fail.
            let _ = write!(page, "## {api_type}\n\n| field | policy | result |\n|---|---|---|\n");
            for row in rows {
                let field = row.field.split_once('.').map_or(row.field, |(_, field)| field);
                let _ = writeln!(page, "| `{field}` | {} | {} |", row.policy.name(), result(row));
            }
            page.push('\n');
        }
        page.truncate(page.trim_end().len());
        page.push('\n');
        page
    }
}

fn result(row: &Row) -> String {
    let text = match row.policy {
        Policy::Native => format!("`{}`", row.result),
        Policy::EmulatedOrRefused => format!("`warn`: emulated, {}; `refuse`: {}", row.result, row.refusal),
        Policy::IgnoredOrRefused => format!("`warn`: ignored, {}; `refuse`: {}", row.result, row.refusal),
        _ => row.result.to_owned(),
    };
    let harmless: Vec<_> = row.harmless.iter().map(shown).collect();
    let except =
        if harmless.is_empty() { String::new() } else { format!(" (except {})", harmless.join(", ")) };
    format!("{}{except}", text.replace('|', "\\|"))
}

fn shown(literal: &Literal) -> String {
    match literal {
        Literal::Bool(value) => format!("`{value}`"),
        Literal::Int(value) => format!("`{value}`"),
        Literal::Text(value) => format!("`{value}`"),
        Literal::Empty => "`{}`".to_owned(),
    }
}
