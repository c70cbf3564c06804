//! Results, as JSON and as a Markdown table.

use std::{collections::BTreeMap, fmt::Write as _, fs, io::Write as _, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{candidate::Candidate, host_info::HostInfo};

/// Prefix of the note of a failed run.
const FAILED: &str = "failed: ";

/// The results of one benchmark.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    #[serde(rename = "machine")]
    pub(crate) host: HostInfo,
    /// The container runtime, if the benchmark used one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runtime: Option<String>,
    /// The candidate that the others are compared with.
    #[serde(default = "bare")]
    pub(crate) beside: Candidate,
    pub(crate) versions: BTreeMap<Candidate, String>,
    pub(crate) records: Vec<Record>,
}

/// One measurement of one candidate.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(rename = "contestant")]
    pub(crate) candidate: Candidate,
    pub(crate) what: String,
    /// The number of pods or nodes.
    pub(crate) count: usize,
    pub(crate) unit: String,
    /// The median of the rounds; `None` if it was not measured.
    pub(crate) value: Option<f64>,
    /// The value of each round.
    pub(crate) rounds: Vec<f64>,
    /// Why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// Name, value and unit of a measurement.
pub(crate) type Figure = (&'static str, f64, &'static str);

impl Report {
    pub(crate) fn new(host: HostInfo) -> Self {
        Self::beside(host, Candidate::Bare)
    }

    /// Creates a report that compares with this candidate.
    pub(crate) fn beside(host: HostInfo, beside: Candidate) -> Self {
        Self { host, runtime: None, beside, versions: BTreeMap::new(), records: Vec::new() }
    }

    /// Adds the measurements of one round.
    pub(crate) fn add(&mut self, candidate: Candidate, count: usize, figures: Vec<Figure>) {
        for (what, value, unit) in figures {
            let record = self.record(candidate, count, what, unit);
            record.rounds.push(value);
            let mut sorted = record.rounds.clone();
            sorted.sort_by(f64::total_cmp);
            record.value = sorted.get(sorted.len() / 2).copied();
        }
    }

    /// Prints and adds the result of a run. A failed run does not end the benchmark, because the other runs take long.
    pub(crate) fn outcome(
        &mut self,
        candidate: Candidate,
        count: usize,
        figures: anyhow::Result<Vec<Figure>>,
    ) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        match figures {
            Ok(figures) => {
                for (what, value, unit) in &figures {
                    writeln!(out, "    {what}: {value:.3} {unit}")?;
                }
                self.add(candidate, count, figures);
            }
            Err(error) => {
                writeln!(out, "    {FAILED}{error:#}")?;
                self.leave_out(candidate, count, format!("{FAILED}{error:#}"));
            }
        }
        Ok(())
    }

    /// Records why a candidate was not measured.
    pub(crate) fn leave_out(&mut self, candidate: Candidate, count: usize, why: String) {
        self.record(candidate, count, "", "").note = Some(why);
    }

    fn record(&mut self, candidate: Candidate, count: usize, what: &str, unit: &str) -> &mut Record {
        let same =
            |record: &Record| record.candidate == candidate && record.count == count && record.what == what;
        let index = self.records.iter().position(same).unwrap_or_else(|| {
            self.records.push(Record {
                candidate,
                what: what.to_owned(),
                count,
                unit: unit.to_owned(),
                value: None,
                rounds: Vec::new(),
                note: None,
            });
            self.records.len() - 1
        });
        &mut self.records[index]
    }

    /// The value of a measurement.
    pub(crate) fn value(&self, candidate: Candidate, count: usize, what: &str) -> Option<f64> {
        let wanted =
            |record: &&Record| record.candidate == candidate && record.count == count && record.what == what;
        self.records.iter().find(wanted)?.value
    }

    /// The numbers of pods or nodes that were measured, in ascending order.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.records.iter().map(|record| record.count).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// One table per count: candidates are columns, measurements rows; in brackets the ratio to the reference.
    fn markdown(&self, things: &str) -> String {
        let mut text = self.head();
        for count in self.counts() {
            let here = || self.records.iter().filter(|record| record.count == count);
            let mut columns: Vec<Candidate> =
                here().filter(|record| record.value.is_some()).map(|record| record.candidate).collect();
            columns.sort();
            columns.dedup();
            let mut measures: Vec<(&str, &str)> = Vec::new();
            for record in here().filter(|record| record.value.is_some()) {
                if !measures.iter().any(|(what, _)| *what == record.what) {
                    measures.push((&record.what, &record.unit));
                }
            }
            let mut rows = vec![vec![format!("{} {things}", thousands(count))]];
            rows[0].extend(columns.iter().map(|candidate| candidate.title().to_owned()));
            for (what, unit) in measures {
                let beside = self.value(self.beside, count, what);
                let mut row = vec![format!("{what}, {unit}")];
                for &candidate in &columns {
                    row.push(match (self.value(candidate, count, what), beside) {
                        (None, _) => String::new(),
                        (Some(value), Some(other)) if candidate != self.beside && other > 0.0 => {
                            format!("{} ({:.2})", short(value), value / other)
                        }
                        (Some(value), _) => short(value),
                    });
                }
                rows.push(row);
            }
            text.push_str(&align(&rows));
            for record in here() {
                if let Some(note) = &record.note {
                    let _ = writeln!(text, "\n{}: {note}.", record.candidate);
                }
            }
            text.push('\n');
        }
        text
    }

    fn head(&self) -> String {
        let HostInfo { date, cores, processor, memory_gb, load_before, kubernetes } = &self.host;
        let mut text = format!(
            "{date}, {cores} cores ({processor}), {memory_gb} GB, Kubernetes {kubernetes}, load before the run {load_before}"
        );
        if let Some(runtime) = &self.runtime {
            let _ = write!(text, "; {runtime}");
        }
        for (candidate, version) in &self.versions {
            let _ = write!(text, "; {candidate} {version}");
        }
        let _ = write!(text, ". In brackets: the ratio to the {}.\n\n", self.beside);
        text
    }

    /// Writes `NAME.json` and `NAME.md` to the folder and returns the table. Called after every run, because a benchmark takes long
    /// and may be interrupted.
    pub(crate) fn save(&self, folder: &Path, name: &str) -> anyhow::Result<String> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let table = self.markdown(name);
        for (end, text) in [("json", &serde_json::to_string_pretty(self)?), ("md", &table)] {
            let path = folder.join(format!("{name}.{end}"));
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(table)
    }

    /// Saves the report and prints the table.
    pub(crate) fn publish(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        let table = self.save(folder, name)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{table}written to {name}.json and {name}.md in {}", folder.display())?;
        let notes = self.records.iter().filter_map(|record| record.note.as_ref());
        let failed = notes.filter(|note| note.starts_with(FAILED)).count();
        anyhow::ensure!(failed == 0, "{failed} runs failed; see the logs in {}/logs", folder.display());
        Ok(())
    }

    /// Reads a saved report.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a report", path.display()))
    }
}

/// The default reference in older reports.
fn bare() -> Candidate {
    Candidate::Bare
}

/// Prints progress to standard error.
pub(crate) fn print_progress(text: &str) {
    // Not important: the results are in the files.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Formats a value with three significant digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        small if small >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// `10000` as `10,000`.
pub(crate) fn thousands(count: usize) -> String {
    if count < 1000 { count.to_string() } else { format!("{},{:03}", count / 1000, count % 1000) }
}

/// A Markdown table with aligned columns.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if index == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let host = HostInfo {
            date: "2026-01-01".to_owned(),
            cores: 2,
            processor: "any".to_owned(),
            memory_gb: 24.0,
            load_before: 0.1,
            kubernetes: "v1.36.4".to_owned(),
        };
        let mut report = Report::new(host);
        report.add(Candidate::Ours, 1000, vec![("to Running", 500.0, "pods/s"), ("idle", 20.0, "MB")]);
        for rate in [590.0, 625.0, 800.0] {
            report.add(Candidate::Bare, 1000, vec![("to Running", rate, "pods/s")]);
        }
        report.leave_out(Candidate::GoAsShipped, 1000, "too slow".to_owned());
        report
    }

    #[test]
    fn the_table_has_a_column_per_contestant_and_the_ratio_to_the_bare_client() {
        let table = report().markdown("pods");
        assert!(table.contains("| 1,000 pods         | bare client | virtual-kubelet (this) |"), "{table}");
        assert!(table.contains("| to Running, pods/s | 625         | 500 (0.80)             |"), "{table}");
        assert!(table.contains("| idle, MB           |             | 20.0                   |"), "{table}");
        assert!(table.contains("Go original, as shipped: too slow."), "{table}");
    }

    #[test]
    fn the_ratio_is_to_the_reference() {
        let mut report = Report::beside(report().host, Candidate::Kubelet);
        report.runtime = Some("containerd 1.6.20".to_owned());
        report.add(Candidate::Kubelet, 100, vec![("idle", 60.0, "MB")]);
        report.add(Candidate::Ours, 100, vec![("idle", 15.0, "MB")]);
        let table = report.markdown("containers");
        assert!(table.contains("; containerd 1.6.20. In brackets: the ratio to the kubelet."), "{table}");
        assert!(table.contains("| idle, MB       | 15.0 (0.25)            | 60.0    |"), "{table}");
    }

    #[test]
    fn the_median_of_the_rounds_counts() {
        assert_eq!(report().value(Candidate::Bare, 1000, "to Running"), Some(625.0));
    }

    #[test]
    fn a_saved_report_can_be_read() {
        let text = serde_json::to_string(&report()).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(read.value(Candidate::Ours, 1000, "idle"), Some(20.0));
    }
}
