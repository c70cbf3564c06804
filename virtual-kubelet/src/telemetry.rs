//! Logs: text for people at a terminal, JSON for machines, always on standard error.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::{
    EnvFilter, fmt,
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

use crate::config::{Log, LogFormat};

/// Keeps telemetry alive; what is still buffered is written when it is dropped.
#[derive(Debug)]
#[must_use = "telemetry ends when the guard is dropped"]
pub struct Guard(());

/// Starts logging for the whole process. Fails when it was started before.
pub fn init(log: &Log) -> Result<Guard, TryInitError> {
    // The level was checked when it was read.
    let filter = EnvFilter::builder().parse_lossy(directives(log.level.directives()));
    let registry = tracing_subscriber::registry().with(filter);
    let started = if is_json(log.format, io::stderr().is_terminal()) {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr)).try_init()
    };
    started.map(|()| Guard(()))
}

/// The user's directives, without the lines in which kube-rs repeats as an error what our controllers report and retry.
fn directives(given: &str) -> String {
    if given.contains("kube_client") {
        given.to_owned()
    } else {
        format!("{given},kube_client::client::builder=off")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Nobody is left to be told of a failure.
        drop(io::stderr().flush());
    }
}

/// Whether lines are JSON, given what the user wants and what standard error is.
fn is_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_quiet_unless_the_user_asks_for_it() {
        assert_eq!(directives("info"), "info,kube_client::client::builder=off");
        assert_eq!(directives("info,kube_client=trace"), "info,kube_client=trace");
    }

    #[test]
    fn auto_is_text_on_a_terminal_and_json_elsewhere() {
        assert!(!is_json(LogFormat::Auto, true));
        assert!(is_json(LogFormat::Auto, false));
        assert!(!is_json(LogFormat::Text, false));
        assert!(is_json(LogFormat::Json, true));
    }
}
