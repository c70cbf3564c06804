//! Results: a table for people, JSON for machines.

use std::{fs, io::Write as _, path::Path};

use anyhow::Context as _;
use serde::Serialize;

/// One figure.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) what: String,
    /// How much it is.
    pub(crate) value: f64,
    /// In which unit.
    pub(crate) unit: &'static str,
}

impl Figure {
    pub(crate) fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { what: what.into(), value, unit }
    }
}

/// Prints the figures, and writes them to `NAME.json` in the folder.
pub(crate) fn publish(folder: &Path, name: &str, figures: &[Figure]) -> anyhow::Result<()> {
    let width = figures.iter().map(|figure| figure.what.len()).max().unwrap_or_default();
    let mut out = std::io::stdout().lock();
    for Figure { what, value, unit } in figures {
        writeln!(out, "{what:width$}  {value:>10.3} {unit}")?;
    }
    let path = folder.join(format!("{name}.json"));
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(&path, serde_json::to_string_pretty(figures)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(out, "written to {}", path.display())?;
    Ok(())
}
