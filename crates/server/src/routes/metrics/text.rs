//! Prometheus' text format 0.0.4. The client library writes OpenMetrics, whose samples carry seconds; here they are
//! milliseconds, which is what metrics-server reads.

use std::{borrow::Cow, fmt::Write as _};

use jiff::Timestamp;

pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text that grows.
#[derive(Debug, Default)]
pub(super) struct Text(String);

/// What samples of one name have in common.
#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    help: Cow<'static, str>,
    kind: &'static str,
}

/// Takes the samples of a family.
#[derive(Debug)]
pub(super) struct Samples<'a> {
    text: &'a mut String,
    family: Family,
    begun: bool,
}

// === impl Family ===

impl Family {
    pub(super) fn counter(name: &'static str, help: impl Into<Cow<'static, str>>) -> Self {
        Self { name, help: help.into(), kind: "counter" }
    }

    pub(super) fn gauge(name: &'static str, help: impl Into<Cow<'static, str>>) -> Self {
        Self { name, help: help.into(), kind: "gauge" }
    }
}

// === impl Text ===

impl Text {
    /// The samples that follow are of this family. A family without samples is not mentioned.
    pub(super) fn family(&mut self, family: Family) -> Samples<'_> {
        Samples { text: &mut self.0, family, begun: false }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

// === impl Samples ===

impl Samples<'_> {
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: f64, time: Option<Timestamp>) {
        let Family { name, help, kind } = &self.family;
        // Writing to a string cannot fail.
        if !std::mem::replace(&mut self.begun, true) {
            let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        self.text.push_str(name);
        for (place, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{}\"", if place == 0 { '{' } else { ',' }, escaped(value));
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
