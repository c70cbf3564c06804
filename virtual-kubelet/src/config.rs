//! The configuration: parsing, defaults and validation.
//!
//! There are three layers, and later ones win: a YAML file, the environment, flags. Every option has a key in the file, an
//! environment variable `VK_...` and, except for lists, a flag; the variables and flags of the Go original keep working. The
//! [table](options::OPTIONS) has all options. Layers are plain data, and [`LayerStack::resolve`] is a pure function that
//! returns an [`EffectiveConfig`] or all problems.

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
mod placement;
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
    listen::{AdminAddr, Listen, ServerAddr},
    placement::{
        DeschedulerSettings, ExtenderSettings, Placement, PlacementGates, PlacementSettings,
        PlacementTlsSettings, ServedWebhook, Serving, WebhookSettings,
    },
    validation::{ValidationContext, default_state_dir},
    value_types::{
        Admission, DaemonSets, Gates, ImpersonateNodes, LogFormat, LogLevel, NodeName, OnShutdown, Os, Port,
        Prefer, RefusedPods, TaintEffect,
    },
};

pub(crate) use self::{
    kubernetes_names::check_subdomain,
    placement::{EXTENDER_PORT, PlacementPart, WEBHOOK_PORT},
};

use std::fmt;

/// A problem in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key as a path: `nodes[1].taint.effect`.
    pub key: String,
    /// What is wrong and what to write instead.
    pub message: String,
    /// Source of the value if it has only one: `--port`, `environment KUBELET_PORT`, a file.
    pub source: Option<String>,
    /// Whether another problem may be the cause, such as a mistyped key for a missing value.
    pub(crate) consequence: bool,
}

// === impl Problem ===

impl Problem {
    /// A problem with a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into(), source: None, consequence: false }
    }

    /// Adds the source of the value.
    #[must_use]
    pub fn from_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks a problem that is only reported if there are no others.
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
