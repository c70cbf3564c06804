//! Logging to standard error: text on a terminal, JSON otherwise.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::{
    EnvFilter, fmt,
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

use crate::config::{Log, LogFormat};

/// Keeps logging active and flushes it when dropped.
#[derive(Debug)]
#[must_use = "telemetry ends when the guard is dropped"]
pub struct TelemetryGuard(());

/// Starts logging for the process. Fails if it was started before.
pub fn init(log: &Log) -> Result<TelemetryGuard, TryInitError> {
    // The level was validated when it was parsed.
    let filter = EnvFilter::builder().parse_lossy(directives(log.level.directives()));
    let registry = tracing_subscriber::registry().with(filter);
    let started = if is_json(log.format, io::stderr().is_terminal()) {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr)).try_init()
    };
    started.map(|()| TelemetryGuard(()))
}

/// The user's directives, without kube-rs' own error lines for requests that our controllers report and retry.
fn directives(given: &str) -> String {
    if given.contains("kube_client") {
        given.to_owned()
    } else {
        format!("{given},kube_client::client::builder=off")
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        // An error cannot be reported any more.
        drop(io::stderr().flush());
    }
}

/// Whether to log JSON.
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
