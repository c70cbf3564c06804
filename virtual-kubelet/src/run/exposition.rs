//! The text of `/metrics`: the metrics of the process, and those of its providers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry as Counters,
};
use tracing::debug;
use vk_provider::{
    Provider,
    metrics::{MetricFamily, MetricKind},
};

/// The prefix of all names.
pub(super) const PREFIX: &str = "virtual_kubelet";

/// What `/metrics` shows. Clones share it.
#[derive(Clone)]
pub(super) struct Exposition(Arc<Inner>);

struct Inner {
    counters: Counters,
    /// By node.
    providers: Mutex<BTreeMap<String, Arc<dyn Provider>>>,
}

/// The families of all providers, merged by name.
struct ProviderFamilies {
    /// The names that the process itself uses.
    taken: BTreeSet<String>,
    families: BTreeMap<String, MergedFamily>,
}

struct MergedFamily {
    help: String,
    kind: MetricKind,
    /// By labels, as text: the value, and the count of a summary.
    samples: BTreeMap<String, (f64, Option<u64>)>,
}

// === impl Exposition ===

impl Exposition {
    pub(super) fn new(counters: Counters) -> Self {
        Self(Arc::new(Inner { counters, providers: Mutex::default() }))
    }

    /// Shows the metrics of a node's provider from now on.
    pub(super) fn add(&self, node: &str, provider: Arc<dyn Provider>) {
        self.0.providers.lock().insert(node.to_owned(), provider);
    }

    pub(super) fn remove(&self, node: &str) {
        self.0.providers.lock().remove(node);
    }

    /// All metrics in the OpenMetrics text format.
    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.0.counters)?;
        let providers = self.0.providers.lock().clone();
        let mut families = ProviderFamilies { taken: names(&text), families: BTreeMap::new() };
        for (node, provider) in &providers {
            for family in provider.metrics() {
                families.add(node, family);
            }
        }
        families.encode(&mut text)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition")
            .field("providers", &self.0.providers.lock().keys())
            .finish_non_exhaustive()
    }
}

/// The names of families and samples in a text.
fn names(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let line = line.strip_prefix("# TYPE ").unwrap_or(line);
        line.split(['{', ' ']).next().unwrap_or_default().to_owned()
    };
    text.lines().map(name).filter(|name| name != "#").collect()
}

// === impl ProviderFamilies ===

impl ProviderFamilies {
    /// Adds what would not make the whole text invalid.
    fn add(&mut self, node: &str, family: MetricFamily) {
        let MetricFamily { name, help, kind, samples } = family;
        // The suffix belongs to the samples of counters.
        let bare = name.strip_suffix("_total").unwrap_or(&name);
        let full = format!("{PREFIX}_{bare}");
        let is_taken = sample_names(&full, kind).iter().any(|name| self.taken.contains(name));
        if !is_name(bare) || self.taken.contains(&full) || is_taken {
            debug!(node, name, "left out metrics of the provider: the name is invalid or taken");
            return;
        }
        let merged = self.families.entry(full).or_insert_with(|| MergedFamily {
            help,
            kind,
            samples: BTreeMap::new(),
        });
        if merged.kind != kind {
            debug!(node, name, "left out metrics of the provider: another kind has this name");
            return;
        }
        for sample in samples {
            let is_summary = kind == MetricKind::Summary;
            let possible =
                (kind == MetricKind::Gauge || sample.value >= 0.0) && is_summary == sample.count.is_some();
            match labels(node, &sample.labels).filter(|_| possible) {
                Some(labels) => drop(merged.samples.entry(labels).or_insert((sample.value, sample.count))),
                None => {
                    debug!(node, name, "left out a sample of the provider: its labels or value are invalid");
                }
            }
        }
    }

    fn encode(&self, text: &mut String) -> fmt::Result {
        for (name, MergedFamily { help, kind, samples }) in &self.families {
            if samples.is_empty() {
                continue;
            }
            let kind_name = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Summary => "summary",
            };
            let help = escaped(help.trim_end_matches('.'));
            write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind_name}\n")?;
            let names = sample_names(name, *kind);
            for (labels, (value, count)) in samples {
                writeln!(text, "{}{{{labels}}} {}", names[0], number(*value))?;
                if let (Some(name), Some(count)) = (names.get(1), count) {
                    writeln!(text, "{name}{{{labels}}} {count}")?;
                }
            }
        }
        Ok(())
    }
}

/// The names of a family's samples: of a summary, that of the sums and that of the counts.
fn sample_names(family: &str, kind: MetricKind) -> Vec<String> {
    match kind {
        MetricKind::Counter => vec![format!("{family}_total")],
        MetricKind::Gauge => vec![family.to_owned()],
        MetricKind::Summary => vec![format!("{family}_sum"), format!("{family}_count")],
    }
}

/// Labels with the node as text; `None` if a name is invalid or occurs twice.
fn labels(node: &str, given: &[(String, String)]) -> Option<String> {
    let mut labels = BTreeMap::new();
    for (name, value) in given {
        let twice = labels.insert(name.as_str(), value.as_str()).is_some();
        if twice || !is_name(name) || name.starts_with("__") {
            return None;
        }
    }
    labels.insert("node", node);
    let labels = labels.into_iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    Some(labels.collect::<Vec<_>>().join(","))
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    value.to_string()
}

#[cfg(test)]
mod tests;
