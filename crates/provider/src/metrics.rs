//! Metrics of a provider, which it makes when they are scraped.

/// Samples of one kind. `/metrics` shows them as `virtual_kubelet_NAME` next to those of the core, with the label `node`.
///
/// Families of several nodes with the same name become one. A family with an invalid name, with the name of a metric of the core, or
/// of another kind than an earlier family of its name is left out, as is a sample with an invalid label, with the labels of an
/// earlier sample, or with a value that its kind cannot have.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFamily {
    /// Its name, such as `cloud_calls`: ASCII letters, digits and underscores, not a digit first. Shown with the suffix `_total` if
    /// it is a counter.
    pub name: String,
    /// What it measures, in one sentence.
    pub help: String,
    /// Whether the values only rise.
    pub kind: MetricKind,
    /// The samples, each with other labels.
    pub samples: Vec<Sample>,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// Only rises while the process runs; not negative.
    Counter,
    /// Rises and falls.
    Gauge,
    /// A number of observations and their sum, such as of durations. Shown as two samples with the suffixes `_count` and `_sum`.
    Summary,
}

/// One value of a [`MetricFamily`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Names and values of the labels. Everyone who reaches the metrics may read them, so they name no pods, and nothing secret. The
    /// core sets the label `node`.
    pub labels: Vec<(String, String)>,
    /// The value; of a summary the sum.
    pub value: f64,
    /// The number of observations; only of a summary.
    pub count: Option<u64>,
}

// === impl MetricFamily ===

impl MetricFamily {
    /// A family of counters without samples.
    pub fn counter(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self { name: name.into(), help: help.into(), kind: MetricKind::Counter, samples: Vec::new() }
    }

    /// A family of gauges without samples.
    pub fn gauge(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self { kind: MetricKind::Gauge, ..Self::counter(name, help) }
    }

    /// A family of sums and counts without samples.
    pub fn summary(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self { kind: MetricKind::Summary, ..Self::counter(name, help) }
    }

    /// Adds a sample of a counter or a gauge.
    #[must_use]
    pub fn sample(self, labels: &[(&str, &str)], value: f64) -> Self {
        self.add(labels, value, None)
    }

    /// Adds a sample of a summary: the sum of all observations and their number.
    #[must_use]
    pub fn observations(self, labels: &[(&str, &str)], sum: f64, count: u64) -> Self {
        self.add(labels, sum, Some(count))
    }

    fn add(mut self, labels: &[(&str, &str)], value: f64, count: Option<u64>) -> Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.push(Sample { labels, value, count });
        self
    }
}
