//! Every configuration option with its key, environment variables and flag. The command line, the environment and the
//! reference are generated from this table.

/// How the text of a variable or flag becomes a value of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text, taken literally.
    Text,
    /// A path, taken literally.
    Path,
    /// A Go duration such as `1m30s`, taken literally.
    Duration,
    /// A whole number.
    Number,
    /// `true` or `false`; a flag without a value means `true`.
    Switch,
    /// Comma-separated `key=value` pairs; the flag can be repeated.
    Map,
    /// Comma-separated values; the flag can be repeated.
    List,
}

/// The group of an option in `virtual-kubelet run --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Connection to the API server.
    ApiServer,
    /// The Node object and its lease.
    Node,
    /// Policies about pods.
    Pods,
    /// The kubelet API that the API server calls.
    KubeletApi,
    /// Certificates of the kubelet API.
    Tls,
    /// The provider and its configuration.
    Provider,
    /// Logs, metrics and health checks.
    Logging,
}

/// A configuration option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigOption {
    /// Group in the help.
    pub group: Group,
    /// Key in the configuration file; a dot leads into a section.
    pub key: &'static str,
    /// Environment variable.
    pub variable: &'static str,
    /// Variables of the Go original and of Rust, which are used if `variable` is not set; the first that is set wins.
    pub old_variables: &'static [&'static str],
    /// Flag, without the dashes.
    pub flag: &'static str,
    /// Description of the default.
    pub default: &'static str,
    /// How the value is parsed.
    pub kind: Kind,
    /// One-line description.
    pub help: &'static str,
}

/// The variable with the path of the configuration file.
pub const CONFIG_VARIABLE: &str = "VK_CONFIG";

/// The flags, beside `--config`, that every help shows. The others are only in `virtual-kubelet run --help`.
pub const COMMON_FLAGS: [&str; 9] = [
    "kubeconfig",
    "nodename",
    "labels",
    "disable-taint",
    "internal-ip",
    "port",
    "provider",
    "provider-config",
    "log-level",
];

// === impl Group ===

impl Group {
    /// All groups in the order of the help.
    pub const ALL: [Self; 7] =
        [Self::ApiServer, Self::Node, Self::Pods, Self::KubeletApi, Self::Tls, Self::Provider, Self::Logging];

    /// The heading in the help.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::ApiServer => "API server",
            Self::Node => "Node",
            Self::Pods => "Pods",
            Self::KubeletApi => "Kubelet API",
            Self::Tls => "TLS",
            Self::Provider => "Provider",
            Self::Logging => "Logging and metrics",
        }
    }
}

// === impl ConfigOption ===

impl ConfigOption {
    const fn new(
        key: &'static str,
        variable: &'static str,
        old_variables: &'static [&'static str],
        flag: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self { group: Group::Node, key, variable, old_variables, flag, default, kind: Kind::Text, help }
    }

    const fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    const fn group(self, group: Group) -> Self {
        Self { group, ..self }
    }
}

/// All options except the lists `nodes` and `taints`, which can only be set in the configuration file.
#[rustfmt::skip]
pub const OPTIONS: &[ConfigOption] = &[
    ConfigOption::new("kubeconfig", "VK_KUBECONFIG", &["KUBECONFIG"], "kubeconfig", "the pod's service account, else `~/.kube/config`",
        "Kubeconfig file of the cluster").kind(Kind::Path).group(Group::ApiServer),
    ConfigOption::new("bootstrapKubeconfig", "VK_BOOTSTRAP_KUBECONFIG", &[], "bootstrap-kubeconfig", "none",
        "Kubeconfig with a bootstrap token, used to request a client certificate; `kubeconfig` is then written").kind(Kind::Path).group(Group::ApiServer),
    ConfigOption::new("impersonateNodes", "VK_IMPERSONATE_NODES", &[], "impersonate-nodes", "`auto`",
        "Act as `system:node:NAME` (impersonation) for what nodes and their pods need: `on`, `off`, or `auto` (as permitted)").group(Group::ApiServer),
    ConfigOption::new("apiServer", "VK_API_SERVER", &["MASTER_URI"], "api-server", "from the kubeconfig",
        "URL of the API server; overrides the kubeconfig").group(Group::ApiServer),
    ConfigOption::new("startupTimeout", "VK_STARTUP_TIMEOUT", &[], "startup-timeout", "`30s`",
        "How long to wait for the API server and the backend at startup; 0 waits forever").kind(Kind::Duration).group(Group::ApiServer),

    ConfigOption::new("nodeName", "VK_NODE_NAME", &["DEFAULT_NODE_NAME", "DEFAULTNODE_NAME"], "nodename", "`virtual-kubelet`",
        "Name of the node, if `nodes` does not name it"),
    ConfigOption::new("os", "VK_OS", &[], "os", "`linux`",
        "Operating system of the pods: `linux` or `windows`"),
    ConfigOption::new("labels", "VK_LABELS", &["VKUBELET_NODE_LABEL"], "labels", "none",
        "Labels of all nodes, in addition to those in the file: `key=value,...`").kind(Kind::Map),
    ConfigOption::new("annotations", "VK_ANNOTATIONS", &[], "annotations", "none",
        "Annotations of all nodes, in addition to those in the file: `key=value,...`").kind(Kind::Map),
    ConfigOption::new("taint.key", "VK_TAINT_KEY", &["VKUBELET_TAINT_KEY"], "taint", "`virtual-kubelet.io/provider`",
        "Key of the taint that keeps ordinary pods off the node"),
    ConfigOption::new("taint.value", "VK_TAINT_VALUE", &["VKUBELET_TAINT_VALUE"], "taint-value", "the provider's name",
        "Value of the taint"),
    ConfigOption::new("taint.effect", "VK_TAINT_EFFECT", &["VKUBELET_TAINT_EFFECT"], "taint-effect", "`NoSchedule`",
        "Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`"),
    ConfigOption::new("disableTaint", "VK_DISABLE_TAINT", &[], "disable-taint", "`false`",
        "Do not set the taint").kind(Kind::Switch),
    ConfigOption::new("internalIP", "VK_INTERNAL_IP", &["VKUBELET_POD_IP"], "internal-ip", "the source address of connections to the API server",
        "InternalIP of the node, where the API server reaches the kubelet API"),
    ConfigOption::new("externalIP", "VK_EXTERNAL_IP", &["VKUBELET_EXTERNAL_POD_IP"], "external-ip", "none",
        "ExternalIP of the node"),
    ConfigOption::new("hostname", "VK_HOSTNAME", &[], "hostname", "the node's name, if DNS has its address under it, else none",
        "Hostname address of the node, which API servers try first"),
    ConfigOption::new("pingInterval", "VK_PING_INTERVAL", &[], "ping-interval", "`10s`",
        "Interval between health checks of the provider").kind(Kind::Duration),
    ConfigOption::new("pingTimeout", "VK_PING_TIMEOUT", &[], "ping-timeout", "`10s`",
        "Timeout of a health check of the provider").kind(Kind::Duration),
    ConfigOption::new("statusInterval", "VK_STATUS_INTERVAL", &[], "status-interval", "`5m`",
        "Interval between node status updates when nothing changes").kind(Kind::Duration),
    ConfigOption::new("leaderElect", "VK_LEADER_ELECT", &[], "leader-elect", "`false`",
        "Run several replicas: one leads each node, the others stand by").kind(Kind::Switch),
    ConfigOption::new("leaseDuration", "VK_LEASE_DURATION", &[], "lease-duration", "`40s`, with `leaderElect` `15s`",
        "Duration of the node lease, at least 4s; it is renewed four times per duration").kind(Kind::Duration),
    ConfigOption::new("renewDeadline", "VK_RENEW_DEADLINE", &[], "renew-deadline", "two thirds of `leaseDuration`",
        "How long after a lease renewal writes may start").kind(Kind::Duration),
    ConfigOption::new("retryPeriod", "VK_RETRY_PERIOD", &[], "retry-period", "`1s`",
        "With `leaderElect`: how often a standby replica checks the lease").kind(Kind::Duration),
    ConfigOption::new("shutdown.timeout", "VK_SHUTDOWN_TIMEOUT", &[], "shutdown-timeout", "`10s`",
        "Time limit of a graceful shutdown").kind(Kind::Duration),
    ConfigOption::new("shutdown.node", "VK_SHUTDOWN_NODE", &[], "shutdown-node", "`leave`",
        "What happens to the Node on shutdown: `leave` it NotReady, or `delete` it"),

    ConfigOption::new("clusterDomain", "VK_CLUSTER_DOMAIN", &[], "cluster-domain", "`cluster.local`",
        "DNS domain of the cluster").group(Group::Pods),
    ConfigOption::new("pods.admission", "VK_PODS_ADMISSION", &[], "pod-admission", "`auto`",
        "Admission checks: `full` (the kubelet's), `placement` (OS, affinity, taints), `off`, or `auto` (by provider)").group(Group::Pods),
    ConfigOption::new("pods.daemonSets", "VK_PODS_DAEMON_SETS", &[], "daemon-set-pods", "`run`",
        "DaemonSet pods: `run` them, `fail` them, or `hold` them Pending").group(Group::Pods),
    ConfigOption::new("pods.refused", "VK_PODS_REFUSED", &[], "refused-pods", "`fail`",
        "Pods that the provider rejects permanently: `fail` them, or `hold` them Pending").group(Group::Pods),
    ConfigOption::new("pods.forceDeleteAfter", "VK_PODS_FORCE_DELETE_AFTER", &[], "force-delete-after", "`0`",
        "Delete a pod that does not stop from the API server this long after its grace period; 0 never").kind(Kind::Duration).group(Group::Pods),
    ConfigOption::new("pods.eventsPerSecond", "VK_PODS_EVENTS_PER_SECOND", &[], "event-qps", "`50`",
        "Pod events per second and node, with bursts of twice as many").kind(Kind::Number).group(Group::Pods),

    ConfigOption::new("address", "VK_ADDRESS", &[], "address", "all interfaces",
        "IP address to listen on").group(Group::KubeletApi),
    ConfigOption::new("port", "VK_PORT", &["KUBELET_PORT"], "port", "`10250`",
        "Port of the kubelet API; more nodes on the same address use the following ports").kind(Kind::Number).group(Group::KubeletApi),
    ConfigOption::new("streamIdleTimeout", "VK_STREAM_IDLE_TIMEOUT", &[], "stream-idle-timeout", "`4h`",
        "Idle timeout of exec, attach and port-forward").kind(Kind::Duration).group(Group::KubeletApi),
    ConfigOption::new("streamCreationTimeout", "VK_STREAM_CREATION_TIMEOUT", &[], "stream-creation-timeout", "`30s`",
        "How long a client may take to open its streams").kind(Kind::Duration).group(Group::KubeletApi),
    ConfigOption::new("streamWebSockets", "VK_STREAM_WEB_SOCKETS", &[], "stream-websockets", "`true`",
        "Let the API server (1.36 or newer) forward WebSockets; otherwise it converts them to SPDY").kind(Kind::Switch).group(Group::KubeletApi),
    ConfigOption::new("systemLogs", "VK_SYSTEM_LOGS", &[], "system-logs", "none",
        "Directory served under /logs/ to callers who may read `nodes/log`").kind(Kind::Path).group(Group::KubeletApi),
    ConfigOption::new("profiling", "VK_PROFILING", &[], "profiling", "`false`",
        "Serve profiles under /debug/pprof/").kind(Kind::Switch).group(Group::KubeletApi),
    ConfigOption::new("auth.tokenTTL", "VK_AUTH_TOKEN_TTL", &[], "authentication-token-webhook-cache-ttl", "`2m`",
        "How long token reviews are cached; 0 for the default").kind(Kind::Duration).group(Group::KubeletApi),
    ConfigOption::new("auth.authorizedTTL", "VK_AUTH_AUTHORIZED_TTL", &[], "authorization-webhook-cache-authorized-ttl", "`5m`",
        "How long positive access reviews are cached; 0 for the default").kind(Kind::Duration).group(Group::KubeletApi),
    ConfigOption::new("auth.unauthorizedTTL", "VK_AUTH_UNAUTHORIZED_TTL", &[], "authorization-webhook-cache-unauthorized-ttl", "`30s`",
        "How long negative access reviews are cached; 0 for the default").kind(Kind::Duration).group(Group::KubeletApi),

    ConfigOption::new("tls.certFile", "VK_TLS_CERT_FILE", &["APISERVER_CERT_LOCATION"], "tls-cert-file", "a certificate from the cluster",
        "Serving certificate of the kubelet API with its chain (PEM)").kind(Kind::Path).group(Group::Tls),
    ConfigOption::new("tls.keyFile", "VK_TLS_KEY_FILE", &["APISERVER_KEY_LOCATION"], "tls-private-key-file", "a generated key",
        "Private key of the serving certificate (PEM)").kind(Kind::Path).group(Group::Tls),
    ConfigOption::new("tls.clientCAFile", "VK_TLS_CLIENT_CA_FILE", &["APISERVER_CA_CERT_LOCATION"], "client-verify-ca", "the cluster's client CA",
        "CA certificates that client certificates are verified against (PEM)").kind(Kind::Path).group(Group::Tls),
    ConfigOption::new("tls.request", "VK_TLS_REQUEST", &[], "rotate-server-certificates", "`true`",
        "Without `tls.certFile`: request the serving certificate from the cluster (needs approval) and renew it").kind(Kind::Switch).group(Group::Tls),

    ConfigOption::new("provider", "VK_PROVIDER", &[], "provider", "none: required",
        "Provider that runs the pods; see `virtual-kubelet providers`").group(Group::Provider),
    ConfigOption::new("providerConfig", "VK_PROVIDER_CONFIG", &[], "provider-config", "none",
        "Configuration file of the provider (in the configuration file also a section)").kind(Kind::Path).group(Group::Provider),
    ConfigOption::new("clientKubeconfig", "VK_CLIENT_KUBECONFIG", &[], "client-kubeconfig", "the cluster that the process runs in",
        "Provider `cluster`: kubeconfig file of the lower cluster").kind(Kind::Path).group(Group::Provider),
    ConfigOption::new("ignoreLabels", "VK_IGNORE_LABELS", &[], "ignore-labels", "`pod-group.scheduling.sigs.k8s.io`",
        "Provider `cluster`: pod labels that are not copied to the lower cluster: `key,...`").kind(Kind::List).group(Group::Provider),
    ConfigOption::new("stateDir", "VK_STATE_DIR", &[], "state-dir", "`/var/lib/virtual-kubelet` for root, else `$XDG_STATE_HOME/virtual-kubelet` or `~/.local/state/virtual-kubelet`",
        "Directory for state of the providers that must survive a restart").kind(Kind::Path).group(Group::Provider),

    ConfigOption::new("log.level", "VK_LOG_LEVEL", &["RUST_LOG"], "log-level", "`info`",
        "`trace`, `debug`, `info`, `warn`, `error`, `fatal`, `panic`, or directives such as `info,vk_node=debug`").group(Group::Logging),
    ConfigOption::new("log.format", "VK_LOG_FORMAT", &[], "log-format", "`auto`",
        "`text`, `json`, or `auto`: text on a terminal, otherwise JSON").group(Group::Logging),
    ConfigOption::new("metricsAddr", "VK_METRICS_ADDR", &[], "metrics-addr", "`127.0.0.1:10255`",
        "Listen address of /healthz, /readyz and /metrics, `:10255` for all interfaces; `off` disables them").group(Group::Logging),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fmt::Write};

    use super::*;
    use crate::config::{DEPRECATED_FLAGS, DEPRECATED_VARIABLES};

    /// The reference, which is part of the documentation.
    const PAGE: &str = include_str!("../../../docs/reference/configuration.md");

    fn row(option: &ConfigOption) -> String {
        let old: Vec<String> = option.old_variables.iter().map(|name| format!("`{name}`")).collect();
        let ConfigOption { key, variable, flag, default, help, .. } = option;
        format!("| `{key}` | `{variable}` | {} | `--{flag}` | {default} | {help} |", old.join(", "))
    }

    #[test]
    fn the_reference_has_a_row_for_every_option() {
        let missing: Vec<String> =
            OPTIONS.iter().map(row).filter(|row| !PAGE.contains(row.as_str())).collect();
        assert!(
            missing.is_empty(),
            "docs/reference/configuration.md lacks these rows:\n{}",
            missing.join("\n")
        );
    }

    #[test]
    fn the_reference_has_a_row_for_every_deprecated_flag_and_variable() {
        let mut missing = String::new();
        for (name, instead) in DEPRECATED_FLAGS
            .iter()
            .map(|retired| (format!("--{}", retired.flag), retired.instead))
            .chain(DEPRECATED_VARIABLES.iter().map(|(name, instead)| ((*name).to_owned(), *instead)))
        {
            let row = format!("| `{name}` | {instead} |");
            if !PAGE.contains(&row) {
                writeln!(missing, "{row}").unwrap();
            }
        }
        assert!(missing.is_empty(), "docs/reference/configuration.md lacks these rows:\n{missing}");
    }

    #[test]
    fn names_are_used_once() {
        let mut seen = BTreeSet::new();
        let variables = OPTIONS.iter().flat_map(|s| s.old_variables.iter().copied().chain([s.variable]));
        for name in
            variables.chain(OPTIONS.iter().map(|s| s.flag)).chain(DEPRECATED_FLAGS.iter().map(|r| r.flag))
        {
            assert!(seen.insert(name), "{name} is used twice");
        }
    }

    #[test]
    fn the_variable_follows_from_the_key() {
        for option in OPTIONS {
            let mut expected = String::from("VK");
            let mut upper_before = false;
            for word in option.key.split('.') {
                expected.push('_');
                for (place, letter) in word.chars().enumerate() {
                    if letter.is_ascii_uppercase() && place > 0 && !upper_before {
                        expected.push('_');
                    }
                    upper_before = letter.is_ascii_uppercase();
                    expected.push(letter.to_ascii_uppercase());
                }
            }
            // `clientCAFile` is the only key with an abbreviation before another word.
            assert_eq!(option.variable.replace("CA_FILE", "CAFILE"), expected, "{}", option.key);
        }
    }

    #[test]
    fn the_reference_names_every_key_of_the_schema() {
        let schema = serde_json::to_value(crate::config::schema()).unwrap();
        let mut keys = Vec::new();
        let definitions = schema["$defs"].as_object().unwrap().values();
        for section in definitions.chain([&schema]) {
            keys.extend(section["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()));
        }
        assert!(keys.len() > 50, "{keys:?}");
        for key in keys {
            let named =
                [format!("`{key}`"), format!(".{key}`")].iter().any(|form| PAGE.contains(form.as_str()));
            // A section is named by the keys in it.
            assert!(
                named || PAGE.contains(&format!("`{key}.")),
                "docs/reference/configuration.md lacks `{key}`"
            );
        }
    }
}
