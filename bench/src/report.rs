//! Results: JSON for machines, and a table for people.

use std::{collections::BTreeMap, fmt::Write as _, fs, io::Write as _, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{contestant::Contestant, machine::Machine};

/// How the note of a run that failed begins.
const FAILED: &str = "failed: ";

/// What one area measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// The container runtime, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runtime: Option<String>,
    /// Whom all others are compared with.
    #[serde(default = "bare")]
    pub(crate) beside: Contestant,
    pub(crate) versions: BTreeMap<Contestant, String>,
    pub(crate) records: Vec<Record>,
}

/// One figure of one contestant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) contestant: Contestant,
    pub(crate) what: String,
    /// How many pods or nodes.
    pub(crate) count: usize,
    pub(crate) unit: String,
    /// The one in the middle of the rounds; none when it was not measured.
    pub(crate) value: Option<f64>,
    /// What each round gave.
    pub(crate) rounds: Vec<f64>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// One figure, before it is anybody's.
pub(crate) type Figure = (&'static str, f64, &'static str);

impl Report {
    pub(crate) fn new(machine: Machine) -> Self {
        Self::beside(machine, Contestant::Bare)
    }

    /// A report that compares with this one.
    pub(crate) fn beside(machine: Machine, beside: Contestant) -> Self {
        Self { machine, runtime: None, beside, versions: BTreeMap::new(), records: Vec::new() }
    }

    /// Takes down what one round gave.
    pub(crate) fn add(&mut self, contestant: Contestant, count: usize, figures: Vec<Figure>) {
        for (what, value, unit) in figures {
            let record = self.record(contestant, count, what, unit);
            record.rounds.push(value);
            let mut sorted = record.rounds.clone();
            sorted.sort_by(f64::total_cmp);
            record.value = sorted.get(sorted.len() / 2).copied();
        }
    }

    /// Takes what a run gave, and says it. The others are measured also when one fails: a run takes long.
    pub(crate) fn outcome(
        &mut self,
        contestant: Contestant,
        count: usize,
        figures: anyhow::Result<Vec<Figure>>,
    ) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        match figures {
            Ok(figures) => {
                for (what, value, unit) in &figures {
                    writeln!(out, "    {what}: {value:.3} {unit}")?;
                }
                self.add(contestant, count, figures);
            }
            Err(error) => {
                writeln!(out, "    {FAILED}{error:#}")?;
                self.leave_out(contestant, count, format!("{FAILED}{error:#}"));
            }
        }
        Ok(())
    }

    /// Takes down why there is nothing.
    pub(crate) fn leave_out(&mut self, contestant: Contestant, count: usize, why: String) {
        self.record(contestant, count, "", "").note = Some(why);
    }

    fn record(&mut self, contestant: Contestant, count: usize, what: &str, unit: &str) -> &mut Record {
        let same =
            |record: &Record| record.contestant == contestant && record.count == count && record.what == what;
        let index = self.records.iter().position(same).unwrap_or_else(|| {
            self.records.push(Record {
                contestant,
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

    /// A figure.
    pub(crate) fn value(&self, contestant: Contestant, count: usize, what: &str) -> Option<f64> {
        let wanted = |record: &&Record| {
            record.contestant == contestant && record.count == count && record.what == what
        };
        self.records.iter().find(wanted)?.value
    }

    /// All that stands under `what` and for how many, in the order of the first mention.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.records.iter().map(|record| record.count).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// One table per count: contestants are columns, measures rows; in brackets the ratio to whom they are compared with.
    fn markdown(&self, things: &str) -> String {
        let mut text = self.head();
        for count in self.counts() {
            let here = || self.records.iter().filter(|record| record.count == count);
            let mut columns: Vec<Contestant> =
                here().filter(|record| record.value.is_some()).map(|record| record.contestant).collect();
            columns.sort();
            columns.dedup();
            let mut measures: Vec<(&str, &str)> = Vec::new();
            for record in here().filter(|record| record.value.is_some()) {
                if !measures.iter().any(|(what, _)| *what == record.what) {
                    measures.push((&record.what, &record.unit));
                }
            }
            let mut rows = vec![vec![format!("{} {things}", thousands(count))]];
            rows[0].extend(columns.iter().map(|contestant| contestant.title().to_owned()));
            for (what, unit) in measures {
                let beside = self.value(self.beside, count, what);
                let mut row = vec![format!("{what}, {unit}")];
                for &contestant in &columns {
                    row.push(match (self.value(contestant, count, what), beside) {
                        (None, _) => String::new(),
                        (Some(value), Some(other)) if contestant != self.beside && other > 0.0 => {
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
                    let _ = writeln!(text, "\n{}: {note}.", record.contestant);
                }
            }
            text.push('\n');
        }
        text
    }

    fn head(&self) -> String {
        let Machine { date, cores, processor, memory_gb, load_before, kubernetes } = &self.machine;
        let mut text = format!(
            "{date}, {cores} cores ({processor}), {memory_gb} GB, Kubernetes {kubernetes}, load before the run {load_before}"
        );
        if let Some(runtime) = &self.runtime {
            let _ = write!(text, "; {runtime}");
        }
        for (contestant, version) in &self.versions {
            let _ = write!(text, "; {contestant} {version}");
        }
        let _ = write!(text, ". In brackets: the ratio to the {}.\n\n", self.beside);
        text
    }

    /// Writes the JSON and the table to `NAME.json` and `NAME.md` in the folder, and answers the table. After every contestant: a
    /// run takes long, and may be cut short.
    pub(crate) fn save(&self, folder: &Path, name: &str) -> anyhow::Result<String> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let table = self.markdown(name);
        for (end, text) in [("json", &serde_json::to_string_pretty(self)?), ("md", &table)] {
            let path = folder.join(format!("{name}.{end}"));
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(table)
    }

    /// Saves it, and prints the table.
    pub(crate) fn publish(&self, folder: &Path, name: &str) -> anyhow::Result<()> {
        let table = self.save(folder, name)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{table}written to {name}.json and {name}.md in {}", folder.display())?;
        let notes = self.records.iter().filter_map(|record| record.note.as_ref());
        let failed = notes.filter(|note| note.starts_with(FAILED)).count();
        anyhow::ensure!(failed == 0, "{failed} runs failed; what each said is in {}/logs", folder.display());
        Ok(())
    }

    /// Reads what was published.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a report", path.display()))
    }
}

/// Reports that do not say it compare with the bare client.
fn bare() -> Contestant {
    Contestant::Bare
}

/// Says how far it is.
pub(crate) fn say(text: &str) {
    // Nobody to tell: the results are in the files all the same.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// As many digits as mean something.
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

/// A table of Markdown whose columns line up.
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
        let machine = Machine {
            date: "2026-01-01".to_owned(),
            cores: 2,
            processor: "any".to_owned(),
            memory_gb: 24.0,
            load_before: 0.1,
            kubernetes: "v1.36.4".to_owned(),
        };
        let mut report = Report::new(machine);
        report.add(Contestant::Ours, 1000, vec![("to Running", 500.0, "pods/s"), ("idle", 20.0, "MB")]);
        for rate in [590.0, 625.0, 800.0] {
            report.add(Contestant::Bare, 1000, vec![("to Running", rate, "pods/s")]);
        }
        report.leave_out(Contestant::GoAsShipped, 1000, "too slow".to_owned());
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
    fn where_the_kubelet_is_the_measure_the_ratio_is_to_it() {
        let mut report = Report::beside(report().machine, Contestant::Kubelet);
        report.runtime = Some("containerd 1.6.20".to_owned());
        report.add(Contestant::Kubelet, 100, vec![("idle", 60.0, "MB")]);
        report.add(Contestant::Ours, 100, vec![("idle", 15.0, "MB")]);
        let table = report.markdown("containers");
        assert!(table.contains("; containerd 1.6.20. In brackets: the ratio to the kubelet."), "{table}");
        assert!(table.contains("| idle, MB       | 15.0 (0.25)            | 60.0    |"), "{table}");
    }

    #[test]
    fn the_one_in_the_middle_of_the_rounds_counts() {
        assert_eq!(report().value(Contestant::Bare, 1000, "to Running"), Some(625.0));
    }

    #[test]
    fn what_was_written_can_be_read() {
        let text = serde_json::to_string(&report()).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(read.value(Contestant::Ours, 1000, "idle"), Some(20.0));
    }
}
