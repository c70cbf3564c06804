//! The flags of the placement process.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, Parser};
use serde_json::{Map, Value, json};

use crate::{
    cli::Failure,
    config::{Gates, GoDuration, Layer, Prefer, Problem, ServerAddr},
};

/// What placement does. The section `placement` of the configuration file has the same settings.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct PlacementFlags {
    /// Place pods with the scheduling gate of placement, when a node has room: off, estimate, trial
    #[arg(long, value_name = "HOW", env = "VK_PLACEMENT_GATES")]
    pub(in crate::cli) gates: Option<Gates>,
    /// Whether the cluster's own machines are candidates, too [default: true]
    #[arg(long, value_name = "BOOL", env = "VK_PLACEMENT_LOCAL")]
    pub(in crate::cli) local: Option<bool>,
    /// With --gates trial: how long a pod may wait in a lower cluster before the next node is tried [default: 30s]
    #[arg(long, value_name = "DURATION", env = "VK_PLACEMENT_TRIAL_PATIENCE")]
    pub(in crate::cli) trial_patience: Option<GoDuration>,
    #[command(flatten)]
    pub(in crate::cli) preference: PreferenceFlags,
    /// Evict pods that are stuck on a virtual node, if another node has room
    #[arg(long, env = "VK_PLACEMENT_DESCHEDULER")]
    pub(in crate::cli) descheduler: bool,
    #[command(flatten)]
    pub(in crate::cli) eviction: EvictionFlags,
    /// Serve an extender of kube-scheduler at this address, such as :8443
    #[arg(long, value_name = "ADDRESS", env = "VK_PLACEMENT_EXTENDER_LISTEN")]
    pub(in crate::cli) extender_listen: Option<ServerAddr>,
    /// Serve the webhook that converts pods at this address, such as :8444; for Kubernetes before 1.36
    #[arg(long, value_name = "ADDRESS", env = "VK_PLACEMENT_WEBHOOK_LISTEN")]
    pub(in crate::cli) webhook_listen: Option<ServerAddr>,
    #[command(flatten)]
    pub(in crate::cli) tls: TlsFlags,
    #[command(flatten)]
    pub(in crate::cli) conversion: WebhookFlags,
    /// Namespace of the Leases, the ConfigMap and the certificates [default: kube-system]
    #[arg(long, value_name = "NAME", env = "VK_PLACEMENT_NAMESPACE")]
    pub(in crate::cli) placement_namespace: Option<String>,
}

/// The variables `VK_PLACEMENT_…` of a command that has no flags for placement.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Variables {
    #[command(flatten)]
    placement: PlacementFlags,
}

/// What the variables `VK_PLACEMENT_…` set, as a layer over the configuration file.
pub(in crate::cli) fn variables() -> Result<Layer, Failure> {
    let parsed = Variables::try_parse_from([""; 0]).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let message = format!("{line} (a variable VK_PLACEMENT_… has the value of that flag)");
        Failure::Configuration(vec![Problem::new("placement", message)])
    })?;
    Ok(parsed.placement.layer())
}

/// Which of several nodes with room is better.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct PreferenceFlags {
    /// Fill nodes in this order, separated by commas; `local` means the cluster's own machines
    #[arg(long, value_name = "NODES", env = "VK_PLACEMENT_ORDER", value_delimiter = ',')]
    order: Vec<String>,
    /// Weights of nodes, such as vk-a=10,vk-b=5; 1 for others
    #[arg(long, value_name = "NODE=N", env = "VK_PLACEMENT_WEIGHTS", value_delimiter = ',', value_parser = parse_weight)]
    weights: Vec<(String, i64)>,
    /// The better one of several nodes: the emptiest (spread) or the fullest (pack) [default: spread]
    #[arg(long, value_name = "WHICH", env = "VK_PLACEMENT_PREFER")]
    prefer: Option<Prefer>,
}

/// When pods are evicted.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct EvictionFlags {
    /// How long a pod is stuck before it is evicted [default: 30s]
    #[arg(long, value_name = "DURATION", env = "VK_PLACEMENT_DESCHEDULER_AFTER")]
    pub(in crate::cli) descheduler_after: Option<GoDuration>,
    /// The most evictions per minute [default: 10]
    #[arg(long, value_name = "N", env = "VK_PLACEMENT_DESCHEDULER_MOST")]
    descheduler_most: Option<i64>,
    /// For how long new pods of the controller avoid the node, the first time [default: 5m]
    #[arg(long, value_name = "DURATION", env = "VK_PLACEMENT_DESCHEDULER_AVOID")]
    descheduler_avoid: Option<GoDuration>,
    /// Only say which pods would be evicted
    #[arg(long, env = "VK_PLACEMENT_DRY_RUN")]
    dry_run: bool,
}

/// The certificate of extender and webhook.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct TlsFlags {
    /// Certificate of extender and webhook (PEM) [default: placement issues one]
    #[arg(long, value_name = "PATH", env = "VK_PLACEMENT_TLS_CERT_FILE")]
    pub(in crate::cli) tlscert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "PATH", env = "VK_PLACEMENT_TLS_KEY_FILE")]
    pub(in crate::cli) tlskey: Option<PathBuf>,
    /// CA of the certificate with which kube-scheduler calls the extender (PEM) [default: placement issues one]
    #[arg(long, value_name = "PATH", env = "VK_PLACEMENT_TLS_CLIENT_CA_FILE")]
    client_ca: Option<PathBuf>,
    /// Names and IP addresses that clients call besides the Service, for the certificate that placement issues, separated by commas
    #[arg(long, value_name = "NAMES", env = "VK_PLACEMENT_TLS_SERVER_NAMES", value_delimiter = ',')]
    server_names: Vec<String>,
}

/// What conversion does besides adding the gate.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct WebhookFlags {
    /// Labels that mean nodes of the upper cluster, separated by commas
    #[arg(long, value_name = "KEYS", env = "VK_PLACEMENT_UPPER_KEYS", value_delimiter = ',')]
    upper_keys: Vec<String>,
    /// Keep converted pods on a virtual node that is lost
    #[arg(long, env = "VK_PLACEMENT_TOLERATE_LOST")]
    tolerate_lost: bool,
}

/// Settings of conversion.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct ConversionFlags {
    #[command(flatten)]
    webhook: WebhookFlags,
    /// Make pods wait for the placement process: off, estimate, trial [default: off]
    #[arg(long, value_name = "HOW", env = "VK_PLACEMENT_GATES")]
    gates: Option<Gates>,
}

fn parse_weight(text: &str) -> Result<(String, i64), String> {
    let parsed =
        text.split_once('=').and_then(|(node, weight)| Some((node.to_owned(), weight.parse().ok()?)));
    parsed.filter(|(node, _)| !node.is_empty()).ok_or_else(|| "expected NODE=NUMBER".to_owned())
}

/// A section of the configuration file with the values that are set.
fn section<const N: usize>(values: [(&str, Option<Value>); N]) -> Map<String, Value> {
    values.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn list(values: &[String]) -> Option<Value> {
    (!values.is_empty()).then(|| json!(values))
}

fn layer(section: &Map<String, Value>) -> Layer {
    Layer::from_value(json!({ "placement": section })).0
}

// === impl PlacementFlags ===

impl PlacementFlags {
    /// The flags as a layer over the configuration file.
    pub(in crate::cli) fn layer(&self) -> Layer {
        let listen = |address: Option<ServerAddr>| address.map(|address| json!({ "listen": address }));
        let mut all = section([
            ("namespace", self.placement_namespace.as_ref().map(|name| json!(name))),
            ("gates", self.gates.map(|gates| json!(gates))),
            ("local", self.local.map(|local| json!(local))),
            ("trialPatience", self.trial_patience.map(|time| json!(time))),
            ("descheduler", self.eviction.section(self.descheduler)),
            ("extender", listen(self.extender_listen)),
            ("webhook", listen(self.webhook_listen)),
            ("tls", self.tls.section()),
        ]);
        all.extend(self.preference.section());
        all.extend(self.conversion.section());
        layer(&all)
    }
}

// === impl PreferenceFlags ===

impl PreferenceFlags {
    fn section(&self) -> Map<String, Value> {
        let weights: BTreeMap<_, _> = self.weights.iter().cloned().collect();
        section([
            ("order", list(&self.order)),
            ("weights", (!weights.is_empty()).then(|| json!(weights))),
            ("prefer", self.prefer.map(|prefer| json!(prefer))),
        ])
    }
}

// === impl EvictionFlags ===

impl EvictionFlags {
    /// The section that switches the descheduler on; `None` if no flag is about it.
    fn section(&self, is_on: bool) -> Option<Value> {
        let section = section([
            ("after", self.descheduler_after.map(|time| json!(time))),
            ("most", self.descheduler_most.map(|most| json!(most))),
            ("avoid", self.descheduler_avoid.map(|time| json!(time))),
            ("dryRun", self.dry_run.then_some(Value::Bool(true))),
        ]);
        (is_on || !section.is_empty()).then_some(Value::Object(section))
    }
}

// === impl TlsFlags ===

impl TlsFlags {
    fn section(&self) -> Option<Value> {
        let section = section([
            ("certFile", self.tlscert.as_ref().map(|path| json!(path))),
            ("keyFile", self.tlskey.as_ref().map(|path| json!(path))),
            ("clientCaFile", self.client_ca.as_ref().map(|path| json!(path))),
            ("serverNames", list(&self.server_names)),
        ]);
        (!section.is_empty()).then_some(Value::Object(section))
    }
}

// === impl WebhookFlags ===

impl WebhookFlags {
    fn section(&self) -> Map<String, Value> {
        section([
            ("upperKeys", list(&self.upper_keys)),
            ("tolerateLost", self.tolerate_lost.then_some(Value::Bool(true))),
        ])
    }
}

// === impl ConversionFlags ===

impl ConversionFlags {
    /// The flags as a layer over the configuration file.
    pub(in crate::cli) fn layer(&self) -> Layer {
        let mut all = self.webhook.section();
        all.extend(section([("gates", self.gates.map(|gates| json!(gates)))]));
        layer(&all)
    }
}
