//! The configuration file as it is written. Everything may be left out.

use std::{borrow::Cow, collections::BTreeMap, fmt, net::IpAddr, path::PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};

use super::{
    AdminAddr, GoDuration,
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
    /// The kubeconfig file that says how to reach the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig by which the node asks for a certificate of its own while it has no valid one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Whether what pods refer to is read as the node that they are bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonate_nodes: Option<ImpersonateNodes>,
    /// URL of the API server, instead of the one in the kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server: Option<String>,
    /// The name of the node, when `nodes` does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<NodeName>,
    /// The provider of all nodes that name no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The provider's own configuration: the path of a file, or a section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_config: Option<ProviderConfig>,
    /// The kubeconfig of the lower cluster, for nodes of the provider `cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_kubeconfig: Option<PathBuf>,
    /// Labels of pods that the lower cluster does not get, for nodes of the provider `cluster`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_labels: Option<Vec<String>>,
    /// What the pods run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<Os>,
    /// The DNS domain of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// The address that the kubelet API listens on; all interfaces when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The address that the node tells the cluster; found out when left out.
    #[serde(rename = "internalIP", skip_serializing_if = "Option::is_none")]
    pub internal_ip: Option<IpAddr>,
    /// Another address of the node, for those who are not in the cluster's network.
    #[serde(rename = "externalIP", skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<IpAddr>,
    /// The port of the kubelet API; further nodes on the same address count up from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// The taint that keeps ordinary pods off the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<TaintSettings>,
    /// Whether to leave that taint out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_taint: Option<bool>,
    /// Further taints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintSettings>,
    /// Labels of the nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The nodes; one with the settings above when left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeSettings>,
    /// How often the provider is asked whether it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_interval: Option<GoDuration>,
    /// How long the provider may take to answer that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_timeout: Option<GoDuration>,
    /// How often the node's status is written even when nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_interval: Option<GoDuration>,
    /// Whether several processes may run the same nodes: one leads each node, the others stand by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_elect: Option<bool>,
    /// How long the node's lease holds; it is renewed every quarter of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration: Option<GoDuration>,
    /// How long after the lease was renewed writes may begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_deadline: Option<GoDuration>,
    /// How often a process that stands by looks whether the lease is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_period: Option<GoDuration>,
    /// Policies about pods.
    pub pods: PodSettings,
    /// What happens when the process stops.
    pub shutdown: ShutdownSettings,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_addr: Option<AdminAddr>,
    /// Logs.
    pub log: LogSettings,
    /// How long the start may take before the process gives up; 0 for as long as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_timeout: Option<GoDuration>,
    /// How long exec, attach and port-forward may be silent before they are closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle_timeout: Option<GoDuration>,
    /// How long a client may take to open its streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_creation_timeout: Option<GoDuration>,
    /// Whether the API server may pass WebSockets on to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_web_sockets: Option<bool>,
    /// A folder of log files that the kubelet API shows under `/logs/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_logs: Option<PathBuf>,
    /// Whether the kubelet API shows what the process is busy with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profiling: Option<bool>,
    /// Where providers keep what must survive a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<PathBuf>,
    /// Files for the kubelet API's TLS.
    pub tls: TlsSettings,
    /// How long answers of the API server about callers of the kubelet API are remembered.
    pub auth: AuthSettings,
}

/// One node, or with `count` several of a kind. What is left out is taken from the top of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeSettings {
    /// The name of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// How many nodes of this kind, at least 1; instead of `name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub count: Option<i64>,
    /// The names of the nodes: `{}` stands for the number of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_pattern: Option<String>,
    /// The number of the first node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub start_index: Option<i64>,
    /// The port of the first node; the others count up from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_base: Option<Port>,
    /// The provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The provider's own configuration: the path of a file, or a section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_config: Option<ProviderConfig>,
    /// What the pods run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<Os>,
    /// The DNS domain of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// The address that the kubelet API listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The address that the node tells the cluster.
    #[serde(rename = "internalIP", skip_serializing_if = "Option::is_none")]
    pub internal_ip: Option<IpAddr>,
    /// Another address of the node, for those who are not in the cluster's network.
    #[serde(rename = "externalIP", skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<IpAddr>,
    /// The port of the kubelet API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// The taint that keeps ordinary pods off the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taint: Option<TaintSettings>,
    /// Whether to leave that taint out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_taint: Option<bool>,
    /// Further taints, beside those of all nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintSettings>,
    /// Labels, beside those of all nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, beside those of all nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TaintSettings {
    /// Its key; `virtual-kubelet.io/provider` when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its value; the name of the provider when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What it does; `NoSchedule` when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// Policies about pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodSettings {
    /// What a node checks before it takes a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// What becomes of pods of DaemonSets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_sets: Option<DaemonSets>,
    /// What becomes of pods that the provider refuses for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedPods>,
    /// How long after its grace period a pod that does not stop leaves the API server all the same; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force_delete_after: Option<GoDuration>,
    /// How many events about pods a node writes in a second, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub events_per_second: Option<i64>,
}

/// What happens when the process stops.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ShutdownSettings {
    /// How long the process may take to end its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
    /// What becomes of the Node objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<OnShutdown>,
}

/// Logs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LogSettings {
    /// How much is logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<LogLevel>,
    /// How lines look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// Files for the kubelet API's TLS. Without them a certificate is asked for from the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsSettings {
    /// The serving certificate with its chain, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// The key of the serving certificate, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The authorities whose client certificates are accepted, in PEM.
    #[serde(rename = "clientCAFile", skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
    /// Whether to ask the cluster for a serving certificate where no file is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<bool>,
}

/// How long answers of the API server about callers are remembered; 0 means the default, as in the Go original.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthSettings {
    /// Who a token belongs to.
    #[serde(rename = "tokenTTL", skip_serializing_if = "Option::is_none")]
    pub token_ttl: Option<GoDuration>,
    /// That a caller may do something.
    #[serde(rename = "authorizedTTL", skip_serializing_if = "Option::is_none")]
    pub authorized_ttl: Option<GoDuration>,
    /// That a caller may not do something.
    #[serde(rename = "unauthorizedTTL", skip_serializing_if = "Option::is_none")]
    pub unauthorized_ttl: Option<GoDuration>,
}

/// The provider's own configuration.
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
    /// Only the keys of a section: it may hold secrets.
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
