//! The effective configuration: complete and validated.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;
use vk_provider::ConfigAlias;

use super::{
    AdminAddr, GoDuration, Listen,
    file_schema::{
        AuthSettings, LogSettings, NodeSettings, PodSettings, ProviderConfig, Settings, ShutdownSettings,
        TaintSettings, TlsSettings,
    },
    placement::Placement,
    value_types::{
        Admission, DaemonSets, ImpersonateNodes, LogFormat, LogLevel, OnShutdown, Os, Port, RefusedPods,
    },
};

/// Replaces secrets in a dump.
const HIDDEN: &str = "(hidden)";
/// Parts of key names that indicate a secret.
const SECRET_NAMES: [&str; 7] =
    ["password", "passwd", "secret", "token", "credential", "privatekey", "accesskey"];

/// The configuration of the process.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectiveConfig {
    /// The configured kubeconfig; from `KUBECONFIG` possibly several, separated by colons. `None`: the pod's service account,
    /// else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig for bootstrapping. Then there is one node, and `kubeconfig` is written.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Whether ConfigMaps and Secrets are read by impersonating the pod's node.
    pub impersonate_nodes: ImpersonateNodes,
    /// URL of the API server; overrides the kubeconfig.
    pub api_server: Option<String>,
    /// The kubeconfig of the lower cluster; already merged into the configuration of nodes of the provider `cluster`.
    pub client_kubeconfig: Option<PathBuf>,
    /// Labels that are not copied to the lower cluster; likewise merged.
    pub ignore_labels: Option<Vec<String>>,
    /// The nodes, at least one. Names and ports are unique.
    pub nodes: Vec<Node>,
    /// Intervals of the node controllers.
    pub timing: Timing,
    /// Policies about pods.
    pub pods: Pods,
    /// What happens when the process stops.
    pub shutdown: Shutdown,
    /// Listen address of health and metrics. `None`: disabled.
    pub metrics_addr: Option<Listen>,
    /// Logs.
    pub log: Log,
    /// Time limit of the startup. `None`: no limit.
    pub startup_timeout: Option<Duration>,
    /// Timeouts of exec, attach and port-forward.
    pub streaming: Streaming,
    /// Optional debug endpoints of the kubelet API.
    pub debug: DebugEndpoints,
    /// State directory of the providers. Each node gets a subdirectory.
    pub state_dir: PathBuf,
    /// TLS of the kubelet API.
    pub tls: Tls,
    /// Cache lifetimes of authentication and authorization.
    pub auth: Auth,
    /// The namespace of placement, which may run elsewhere.
    pub placement_namespace: String,
    /// How pods are converted for virtual nodes.
    pub conversion: vk_placement::convert::Settings,
    /// Placement of pods on virtual nodes. `None`: off.
    pub placement: Option<Placement>,
}

/// One node.
#[derive(Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The name of its provider in the registry.
    pub provider: String,
    /// The provider's configuration; files have been read.
    pub provider_config: vk_provider::Config,
    /// The environment variables that set keys of it.
    pub provider_variables: Vec<ConfigAlias>,
    /// Operating system of its pods.
    pub os: Os,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
    /// Listen address of its kubelet API. `None`: all interfaces.
    pub address: Option<IpAddr>,
    /// Its InternalIP. `None`: detected.
    pub internal_ip: Option<IpAddr>,
    /// Its ExternalIP.
    pub external_ip: Option<IpAddr>,
    /// Its host name. `None`: its name, if that resolves to its address.
    pub hostname: Option<String>,
    /// The port of its kubelet API.
    pub port: u16,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// The user's labels.
    pub labels: BTreeMap<String, String>,
    /// The user's annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Intervals of the node controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval between pings of the provider.
    pub ping_interval: Duration,
    /// Timeout of a ping.
    pub ping_timeout: Duration,
    /// Interval between status updates when nothing changes.
    pub status_interval: Duration,
    /// The node's lease.
    pub lease: Lease,
}

/// The node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whether several processes may run the same nodes.
    pub leader_elect: bool,
    /// Lease duration in whole seconds, at least 4.
    pub duration: Duration,
    /// How long after a renewal writes may start. Shorter than the duration.
    pub renew_deadline: Duration,
    /// How often a standby replica reads the lease.
    pub retry_period: Duration,
}

/// Policies about pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pods {
    /// Admission checks of a node.
    pub admission: Admission,
    /// What happens to DaemonSet pods.
    pub daemon_sets: DaemonSets,
    /// What happens to pods that the provider rejects.
    pub refused: RefusedPods,
    /// When a pod that does not stop is deleted from the API server anyway. `None`: never.
    pub force_delete_after: Option<Duration>,
    /// Events per second and node, at least 1.
    pub events_per_second: u32,
}

/// What happens when the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Time limit of a graceful shutdown.
    pub timeout: Duration,
    /// What happens to the Node objects.
    pub node: OnShutdown,
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Log level.
    pub level: LogLevel,
    /// Format of log lines.
    pub format: LogFormat,
}

/// Timeouts of exec, attach and port-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// Idle timeout of a session.
    pub idle_timeout: Duration,
    /// How long a client may take to open its streams.
    pub creation_timeout: Duration,
    /// Whether the API server may forward WebSockets.
    pub web_sockets: bool,
}

/// Optional debug endpoints of the kubelet API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugEndpoints {
    /// Directory served under `/logs/`. `None`: disabled.
    pub system_logs: Option<PathBuf>,
    /// Whether `/debug/pprof/` is served.
    pub profiling: bool,
}

/// TLS of the kubelet API. Files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The serving certificate and its key. `None`: requested from the cluster.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// The client CA. `None`: the CA that the cluster publishes.
    pub client_ca: Option<PathBuf>,
    /// Whether to request a serving certificate from the cluster if there are no files.
    pub request: bool,
}

/// Cache lifetimes of authentication and authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Token reviews.
    pub token_ttl: Duration,
    /// Positive access reviews.
    pub authorized_ttl: Duration,
    /// Negative access reviews.
    pub unauthorized_ttl: Duration,
}

// === impl EffectiveConfig ===

impl EffectiveConfig {
    /// One node for each provider with its configuration, for commands that run no nodes.
    pub(crate) fn distinct_providers(&self) -> Vec<&Node> {
        let mut distinct: Vec<&Node> = Vec::new();
        for node in &self.nodes {
            let same = |other: &&Node| {
                (&other.provider, &other.provider_config) == (&node.provider, &node.provider_config)
            };
            if !distinct.iter().any(same) {
                distinct.push(node);
            }
        }
        distinct
    }

    /// Converts to the structure of the configuration file, with all defaults. Values in a provider's section that look like
    /// secrets are hidden.
    pub fn to_settings(&self) -> Settings {
        let go = |duration| Some(GoDuration(duration));
        let serving = self.tls.serving.clone();
        let mut placement = self.placement.as_ref().map(Placement::to_settings).unwrap_or_default();
        let default = vk_placement::convert::Settings::default();
        if self.conversion.upper_keys != default.upper_keys {
            placement.upper_keys = Some(self.conversion.upper_keys.clone());
        }
        if self.conversion.tolerate_lost {
            placement.tolerate_lost = Some(true);
        }
        Settings {
            kubeconfig: self.kubeconfig.clone(),
            bootstrap_kubeconfig: self.bootstrap_kubeconfig.clone(),
            impersonate_nodes: Some(self.impersonate_nodes),
            api_server: self.api_server.clone(),
            client_kubeconfig: self.client_kubeconfig.clone(),
            ignore_labels: self.ignore_labels.clone(),
            nodes: self.nodes.iter().map(Node::to_settings).collect(),
            ping_interval: go(self.timing.ping_interval),
            ping_timeout: go(self.timing.ping_timeout),
            status_interval: go(self.timing.status_interval),
            leader_elect: Some(self.timing.lease.leader_elect),
            lease_duration: go(self.timing.lease.duration),
            renew_deadline: go(self.timing.lease.renew_deadline),
            retry_period: go(self.timing.lease.retry_period),
            pods: PodSettings {
                admission: Some(self.pods.admission),
                daemon_sets: Some(self.pods.daemon_sets),
                refused: Some(self.pods.refused),
                force_delete_after: go(self.pods.force_delete_after.unwrap_or_default()),
                events_per_second: Some(self.pods.events_per_second.into()),
            },
            shutdown: ShutdownSettings { timeout: go(self.shutdown.timeout), node: Some(self.shutdown.node) },
            metrics_addr: Some(AdminAddr(self.metrics_addr)),
            log: LogSettings { level: Some(self.log.level.clone()), format: Some(self.log.format) },
            startup_timeout: go(self.startup_timeout.unwrap_or_default()),
            stream_idle_timeout: go(self.streaming.idle_timeout),
            stream_creation_timeout: go(self.streaming.creation_timeout),
            stream_web_sockets: Some(self.streaming.web_sockets),
            system_logs: self.debug.system_logs.clone(),
            profiling: Some(self.debug.profiling),
            state_dir: Some(self.state_dir.clone()),
            tls: TlsSettings {
                cert_file: serving.as_ref().map(|(cert, _)| cert.clone()),
                key_file: serving.map(|(_, key)| key),
                client_ca_file: self.tls.client_ca.clone(),
                request: Some(self.tls.request),
            },
            auth: AuthSettings {
                token_ttl: go(self.auth.token_ttl),
                authorized_ttl: go(self.auth.authorized_ttl),
                unauthorized_ttl: go(self.auth.unauthorized_ttl),
            },
            placement,
            ..Settings::default()
        }
    }
}

// === impl Node ===

impl Node {
    fn to_settings(&self) -> NodeSettings {
        let provider_config = match &self.provider_config {
            vk_provider::Config::Default => None,
            // Options given besides the file are at the top level.
            vk_provider::Config::File { path, .. } | vk_provider::Config::FileWith { path, .. } => {
                Some(ProviderConfig::Path(path.clone()))
            }
            vk_provider::Config::Inline(value) => match without_secrets(value) {
                Value::Object(section) => Some(ProviderConfig::Inline(section)),
                _ => None,
            },
        };
        let taint = |taint: &Taint| TaintSettings {
            key: Some(taint.key.clone()),
            value: Some(taint.value.clone().unwrap_or_default()),
            effect: taint.effect.parse().ok(),
        };
        NodeSettings {
            name: self.name.parse().ok(),
            provider: Some(self.provider.clone()),
            provider_config,
            os: Some(self.os),
            cluster_domain: Some(self.cluster_domain.clone()),
            address: self.address,
            internal_ip: self.internal_ip,
            external_ip: self.external_ip,
            hostname: self.hostname.clone(),
            port: Some(Port(self.port)),
            // The list has all taints, including the default one.
            disable_taint: Some(true),
            taints: self.taints.iter().map(taint).collect(),
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            ..NodeSettings::default()
        }
    }
}

impl fmt::Debug for Node {
    /// Formats as settings, which hide the provider's section.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_settings().fmt(f)
    }
}

/// Hides values with secret names.
fn without_secrets(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| {
                    let plain = key.to_lowercase().replace(['-', '_'], "");
                    let secret = SECRET_NAMES.iter().any(|name| plain.contains(name));
                    let value = if secret { HIDDEN.into() } else { without_secrets(value) };
                    (key.clone(), value)
                })
                .collect(),
        ),
        Value::Array(items) => items.iter().map(without_secrets).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_provider_are_hidden_at_any_depth() {
        let section = serde_json::json!({
            "region": "x", "access_key_id": "AK", "accounts": [{"accessKeySecret": "s", "name": "n"}],
            "auth": {"Password": {"value": "p"}, "api-token": "t"}
        });
        let expected = serde_json::json!({
            "region": "x", "access_key_id": HIDDEN, "accounts": [{"accessKeySecret": HIDDEN, "name": "n"}],
            "auth": {"Password": HIDDEN, "api-token": HIDDEN}
        });
        assert_eq!(without_secrets(&section), expected);
    }
}
