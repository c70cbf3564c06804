//! The configuration that the process runs by: complete and checked.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use super::{
    AdminAddr, GoDuration, Listen,
    file_schema::{
        AuthSettings, LogSettings, NodeSettings, PodSettings, ProviderConfig, Settings, ShutdownSettings,
        TaintSettings, TlsSettings,
    },
    value_types::{
        Admission, DaemonSets, ImpersonateNodes, LogFormat, LogLevel, OnShutdown, Os, Port, RefusedPods,
    },
};

/// What stands in a dump where a secret may be.
const HIDDEN: &str = "(hidden)";
/// Parts of names under which secrets are kept.
const SECRETIVE: [&str; 7] =
    ["password", "passwd", "secret", "token", "credential", "privatekey", "accesskey"];

/// Everything that was decided before the first node starts.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectiveConfig {
    /// The kubeconfig that the user named; from `KUBECONFIG` it may be several, with colons between them. `None`:
    /// The pod's service account, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig by which the node asks for its identity. Then there is one node, and `kubeconfig` is written.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Whether what pods refer to is read as the node that they are bound to.
    pub impersonate_nodes: ImpersonateNodes,
    /// URL of the API server, instead of the kubeconfig's.
    pub api_server: Option<String>,
    /// The kubeconfig of the lower cluster, which nodes of the provider `cluster` have in their configuration already.
    pub client_kubeconfig: Option<PathBuf>,
    /// Labels that the lower cluster does not get, likewise.
    pub ignore_labels: Option<Vec<String>>,
    /// The nodes, at least one. Names and ports are unique.
    pub nodes: Vec<Node>,
    /// Intervals of the node controllers.
    pub timing: Timing,
    /// Policies about pods.
    pub pods: Pods,
    /// What happens when the process stops.
    pub shutdown: Shutdown,
    /// Where health and metrics are served. `None`: nowhere.
    pub metrics_addr: Option<Listen>,
    /// Logs.
    pub log: Log,
    /// How long the start may take. `None`: as long as it takes.
    pub startup_timeout: Option<Duration>,
    /// Timeouts of exec, attach and port-forward.
    pub streaming: Streaming,
    /// What the kubelet API shows beside the usual.
    pub debug: DebugEndpoints,
    /// Where providers keep what must survive a restart. Each node gets a folder in it.
    pub state_dir: PathBuf,
    /// Files for the kubelet API's TLS.
    pub tls: Tls,
    /// How long answers of the API server about callers are remembered.
    pub auth: Auth,
}

/// One node.
#[derive(Clone, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The name of its provider, which the registry has.
    pub provider: String,
    /// The provider's own configuration; a file has been read.
    pub provider_config: vk_provider::Config,
    /// What its pods run on.
    pub os: Os,
    /// The DNS domain of the cluster.
    pub cluster_domain: String,
    /// The address that its kubelet API listens on. `None`: all interfaces.
    pub address: Option<IpAddr>,
    /// The address that it tells the cluster. `None`: to be found out.
    pub internal_ip: Option<IpAddr>,
    /// Another address of it, for those outside.
    pub external_ip: Option<IpAddr>,
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
    /// How often the provider is pinged.
    pub ping_interval: Duration,
    /// How long a ping may take.
    pub ping_timeout: Duration,
    /// How often the status is written even when nothing changed.
    pub status_interval: Duration,
    /// The node's lease.
    pub lease: Lease,
}

/// The node's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whether several processes may run the same nodes.
    pub leader_elect: bool,
    /// How long the lease holds. A whole number of seconds, at least 4.
    pub duration: Duration,
    /// How long after it was renewed writes may begin. Shorter than the duration.
    pub renew_deadline: Duration,
    /// How often a process that stands by looks at it.
    pub retry_period: Duration,
}

/// Policies about pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pods {
    /// What a node checks before it takes one.
    pub admission: Admission,
    /// What becomes of those of DaemonSets.
    pub daemon_sets: DaemonSets,
    /// What becomes of those that the provider refuses.
    pub refused: RefusedPods,
    /// When one that does not stop leaves the API server all the same. `None`: never.
    pub force_delete_after: Option<Duration>,
    /// How many events a node writes in a second, at least 1.
    pub events_per_second: u32,
}

/// What happens when the process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// How long the process may take to end its work.
    pub timeout: Duration,
    /// What becomes of the Node objects.
    pub node: OnShutdown,
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// How much is logged.
    pub level: LogLevel,
    /// How lines look.
    pub format: LogFormat,
}

/// Timeouts of exec, attach and port-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// How long a session may be silent.
    pub idle_timeout: Duration,
    /// How long a client may take to open its streams.
    pub creation_timeout: Duration,
    /// Whether the API server may pass WebSockets on.
    pub web_sockets: bool,
}

/// What the kubelet API shows beside the usual.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugEndpoints {
    /// The folder under `/logs/`. `None`: there is none.
    pub system_logs: Option<PathBuf>,
    /// Whether there is `/debug/pprof/`.
    pub profiling: bool,
}

/// Files for the kubelet API's TLS, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The serving certificate and its key. `None`: a certificate is asked for from the cluster.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// The authorities whose client certificates are accepted. `None`: those that the cluster publishes.
    pub client_ca: Option<PathBuf>,
    /// Whether to ask the cluster for a serving certificate where there are no files.
    pub request: bool,
}

/// How long answers of the API server about callers are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Who a token belongs to.
    pub token_ttl: Duration,
    /// That a caller may do something.
    pub authorized_ttl: Duration,
    /// That a caller may not do something.
    pub unauthorized_ttl: Duration,
}

// === impl EffectiveConfig ===

impl EffectiveConfig {
    /// The same as a configuration file, with every default written out. Values in a provider's section that look like
    /// secrets are left out.
    pub fn to_settings(&self) -> Settings {
        let go = |duration| Some(GoDuration(duration));
        let serving = self.tls.serving.clone();
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
            ..Settings::default()
        }
    }
}

// === impl Node ===

impl Node {
    fn to_settings(&self) -> NodeSettings {
        let provider_config = match &self.provider_config {
            vk_provider::Config::Default => None,
            // What was given beside the file stands at the top.
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
            port: Some(Port(self.port)),
            // All taints stand in the list, the usual one among them.
            disable_taint: Some(true),
            taints: self.taints.iter().map(taint).collect(),
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            ..NodeSettings::default()
        }
    }
}

impl fmt::Debug for Node {
    /// As settings, which keep the provider's section to themselves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_settings().fmt(f)
    }
}

/// A copy in which values under secretive names are hidden.
fn without_secrets(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| {
                    let plain = key.to_lowercase().replace(['-', '_'], "");
                    let secret = SECRETIVE.iter().any(|name| plain.contains(name));
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
