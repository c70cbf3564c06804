//! The configuration: what the user may write, and what comes of it.
//!
//! Three layers, the later wins: a YAML file, the environment, flags. Every setting has a key in the file, an environment
//! variable that begins with `VK_`, and (lists aside) a flag; the variables and flags of the Go original keep working. The
//! [table](options::OPTIONS) names them all. LayerStack are plain data and [`LayerStack::resolve`] is a pure function, which answers
//! with a [`EffectiveConfig`] configuration or with everything that is wrong.

mod deprecated;
mod duration;
mod effective;
mod file_schema;
mod kubernetes_names;
mod layer;
mod lease;
mod listen;
mod nodes;
pub mod options;
mod ports;
mod validation;
mod value_types;

pub use self::{
    deprecated::{DEPRECATED_FLAGS, DEPRECATED_VARIABLES, DeprecatedFlag},
    duration::GoDuration,
    effective::{
        Auth, DebugEndpoints, EffectiveConfig, Lease, Log, Node, Pods, Shutdown, Streaming, Timing, Tls,
    },
    file_schema::{
        AuthSettings, LogSettings, NodeSettings, PodSettings, ProviderConfig, Settings, ShutdownSettings,
        TaintSettings, TlsSettings,
    },
    layer::{Layer, LayerStack},
    listen::{AdminAddr, Listen},
    validation::{ValidationContext, default_state_dir},
    value_types::{
        Admission, DaemonSets, ImpersonateNodes, LogFormat, LogLevel, NodeName, OnShutdown, Os, Port,
        RefusedPods, TaintEffect,
    },
};

use std::fmt;

/// One mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key that is wrong, as a path: `nodes[1].taint.effect`.
    pub key: String,
    /// What is wrong with it and what to write.
    pub message: String,
    /// Where the value came from, if not from several places: `--port`, `environment KUBELET_PORT`, a file.
    pub source: Option<String>,
    /// Whether another problem may be what caused it, such as a missing value whose key was mistyped.
    pub(crate) consequence: bool,
}

// === impl Problem ===

impl Problem {
    /// A mistake at a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into(), source: None, consequence: false }
    }

    /// The same, with the place where the value was given.
    #[must_use]
    pub fn from_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same, as something that need not be said when there are other problems.
    #[must_use]
    pub(crate) fn consequential(mut self) -> Self {
        self.consequence = true;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)?;
        match &self.source {
            Some(source) => write!(f, " (from {source})"),
            None => Ok(()),
        }
    }
}

/// The JSON schema of the configuration file.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Settings)
}
