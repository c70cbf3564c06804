//! Prometheus' text format 0.0.4. The client library writes OpenMetrics, whose timestamps are seconds; metrics-server expects
//! milliseconds.

use std::{borrow::Cow, fmt::Write as _};

use jiff::Timestamp;

pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Encodes metrics.
#[derive(Debug, Default)]
pub(super) struct PrometheusText(String);

/// The name, help and type of a metric.
#[derive(Debug)]
pub(super) struct MetricFamily {
    name: &'static str,
    help: Cow<'static, str>,
    kind: &'static str,
}

/// Writes the samples of a family.
#[derive(Debug)]
pub(super) struct FamilySamples<'a> {
    text: &'a mut String,
    family: MetricFamily,
    begun: bool,
}

// === impl MetricFamily ===

impl MetricFamily {
    pub(super) fn counter(name: &'static str, help: impl Into<Cow<'static, str>>) -> Self {
        Self { name, help: help.into(), kind: "counter" }
    }

    pub(super) fn gauge(name: &'static str, help: impl Into<Cow<'static, str>>) -> Self {
        Self { name, help: help.into(), kind: "gauge" }
    }
}

// === impl PrometheusText ===

impl PrometheusText {
    /// Starts a family. A family without samples is omitted.
    pub(super) fn family(&mut self, family: MetricFamily) -> FamilySamples<'_> {
        FamilySamples { text: &mut self.0, family, begun: false }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

// === impl FamilySamples ===

impl FamilySamples<'_> {
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: f64, time: Option<Timestamp>) {
        let MetricFamily { name, help, kind } = &self.family;
        // Writing to a string cannot fail.
        if !std::mem::replace(&mut self.begun, true) {
            let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        self.text.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{}\"", if index == 0 { '{' } else { ',' }, escaped(value));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = write!(self.text, " {value}");
        if let Some(time) = time {
            let _ = write!(self.text, " {}", time.as_millisecond());
        }
        self.text.push('\n');
    }
}

fn escaped(value: &str) -> Cow<'_, str> {
    if value.contains(['\\', '"', '\n']) {
        return value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into();
    }
    value.into()
}
