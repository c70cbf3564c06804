//! The structure of the configuration file. All fields are optional.

use std::{borrow::Cow, collections::BTreeMap, fmt, net::IpAddr, path::PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};

use super::{
    AdminAddr, GoDuration,
    placement::PlacementSettings,
    value_types::{
        Admission, DaemonSets, ImpersonateNodes, LogFormat, LogLevel, NodeName, OnShutdown, Os, Port,
        RefusedPods, TaintEffect,
    },
};

/// The configuration of virtual-kubelet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(title = "virtual-kubelet")]
pub struct Settings {
    /// Kubeconfig file of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig for requesting the node's client certificate while it has no valid one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Whether ConfigMaps and Secrets are read by impersonating the pod's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonate_nodes: Option<ImpersonateNodes>,
    /// URL of the API server; overrides the kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server: Option<String>,
    /// Name of the node, if `nodes` does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<NodeName>,
    /// Default provider of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Configuration of the provider: the path of a file, or a section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_config: Option<ProviderConfig>,
    /// Provider `cluster`: kubeconfig of the lower cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_kubeconfig: Option<PathBuf>,
    /// Provider `cluster`: pod labels that are not copied to the lower cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_labels: Option<Vec<String>>,
    /// Operating system of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<Os>,
    /// The DNS domain of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// Listen address of the kubelet API; default all interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// InternalIP of the node; detected by default.
    #[serde(rename = "internalIP", skip_serializing_if = "Option::is_none")]
    pub internal_ip: Option<IpAddr>,
    /// ExternalIP of the node.
    #[serde(rename = "externalIP", skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<IpAddr>,
    /// Hostname address of the node; by default its name, if DNS has its address under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Port of the kubelet API; more nodes on the same address use the following ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// The taint that keeps ordinary pods off the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<TaintSettings>,
    /// Do not set the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_taint: Option<bool>,
    /// Additional taints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintSettings>,
    /// Labels of the nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The nodes; by default one with the settings above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeSettings>,
    /// Interval between health checks of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_interval: Option<GoDuration>,
    /// Timeout of a health check of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_timeout: Option<GoDuration>,
    /// Interval between node status updates when nothing changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_interval: Option<GoDuration>,
    /// Run several replicas: one leads each node, the others stand by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_elect: Option<bool>,
    /// Duration of the node lease; it is renewed four times per duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration: Option<GoDuration>,
    /// How long after a lease renewal writes may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_deadline: Option<GoDuration>,
    /// How often a standby replica checks the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<GoDuration>,
    /// Policies about pods.
    pub pods: PodSettings,
    /// What happens when the process stops.
    pub shutdown: ShutdownSettings,
    /// Listen address of `/healthz`, `/readyz` and `/metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_addr: Option<AdminAddr>,
    /// Logs.
    pub log: LogSettings,
    /// Time limit of the startup; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_timeout: Option<GoDuration>,
    /// Idle timeout of exec, attach and port-forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle_timeout: Option<GoDuration>,
    /// How long a client may take to open its streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_creation_timeout: Option<GoDuration>,
    /// Whether the API server may forward WebSockets to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_web_sockets: Option<bool>,
    /// Directory that the kubelet API serves under `/logs/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_logs: Option<PathBuf>,
    /// Whether the kubelet API serves profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiling: Option<bool>,
    /// State directory of the providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<PathBuf>,
    /// TLS of the kubelet API.
    pub tls: TlsSettings,
    /// Cache lifetimes of authentication and authorization for the kubelet API.
    pub auth: AuthSettings,
    /// Placement of pods on virtual nodes.
    pub placement: PlacementSettings,
}

/// A node, or several equal nodes with `count`. Unset fields default to the top level of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeSettings {
    /// The name of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// Number of nodes, at least 1; instead of `name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub count: Option<i64>,
    /// Pattern of the node names; `{}` is replaced by the index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_pattern: Option<String>,
    /// Index of the first node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub start_index: Option<i64>,
    /// Port of the first node; the others use the following ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_base: Option<Port>,
    /// The provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Configuration of the provider: the path of a file, or a section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_config: Option<ProviderConfig>,
    /// Operating system of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<Os>,
    /// The DNS domain of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// Listen address of the kubelet API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// InternalIP of the node.
    #[serde(rename = "internalIP", skip_serializing_if = "Option::is_none")]
    pub internal_ip: Option<IpAddr>,
    /// ExternalIP of the node.
    #[serde(rename = "externalIP", skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<IpAddr>,
    /// Hostname address of the node; by default its name, if DNS has its address under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The port of the kubelet API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// The taint that keeps ordinary pods off the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<TaintSettings>,
    /// Do not set the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_taint: Option<bool>,
    /// Taints in addition to those of all nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintSettings>,
    /// Labels in addition to those of all nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations in addition to those of all nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TaintSettings {
    /// Key; default `virtual-kubelet.io/provider`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Value; default the name of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Effect; default `NoSchedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// Policies about pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodSettings {
    /// Admission checks of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// What happens to DaemonSet pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_sets: Option<DaemonSets>,
    /// What happens to pods that the provider rejects permanently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedPods>,
    /// How long after its grace period a pod that does not stop is deleted from the API server anyway; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force_delete_after: Option<GoDuration>,
    /// Pod events per second and node, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub events_per_second: Option<i64>,
}

/// What happens when the process stops.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ShutdownSettings {
    /// Time limit of a graceful shutdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
    /// What happens to the Node objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<OnShutdown>,
}

/// Logs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LogSettings {
    /// Log level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// Format of log lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// TLS files of the kubelet API. Without them a certificate is requested from the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsSettings {
    /// The serving certificate with its chain, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The key of the serving certificate, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// CA certificates for client certificates, in PEM.
    #[serde(rename = "clientCAFile", skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
    /// Whether to request a serving certificate from the cluster if no file is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<bool>,
}

/// Cache lifetimes of authentication and authorization; 0 means the default, as in the Go original.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthSettings {
    /// Token reviews.
    #[serde(rename = "tokenTTL", skip_serializing_if = "Option::is_none")]
    pub token_ttl: Option<GoDuration>,
    /// Positive access reviews.
    #[serde(rename = "authorizedTTL", skip_serializing_if = "Option::is_none")]
    pub authorized_ttl: Option<GoDuration>,
    /// Negative access reviews.
    #[serde(rename = "unauthorizedTTL", skip_serializing_if = "Option::is_none")]
    pub unauthorized_ttl: Option<GoDuration>,
}

/// Configuration of a provider.
#[derive(Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ProviderConfig {
    /// The path of a file.
    Path(PathBuf),
    /// A section of the file.
    Inline(Map<String, Value>),
}

// === impl ProviderConfig ===

impl<'de> Deserialize<'de> for ProviderConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(path) => Ok(Self::Path(path.into())),
            Value::Object(section) => Ok(Self::Inline(section)),
            other => Err(D::Error::custom(format!("{other} is neither the path of a file nor a section"))),
        }
    }
}

impl fmt::Debug for ProviderConfig {
    /// Shows only the keys of a section, because it may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Self::Inline(section) => f.debug_tuple("Inline").field(&section.keys()).finish(),
        }
    }
}

impl JsonSchema for ProviderConfig {
    fn schema_name() -> Cow<'static, str> {
        "ProviderConfig".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "object"], "description": "The path of a file, or a section." })
    }
}
