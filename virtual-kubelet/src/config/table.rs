//! Every setting with the names it goes by: the one place from which flags, environment and reference are made.

/// How the text of a variable or flag becomes a value of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it stands.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`; a flag alone means `true`.
    Switch,
    /// `key=value`, several with commas between them; the flag can be repeated.
    Map,
    /// Several with commas between them; the flag can be repeated.
    List,
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its key in the file; a dot leads into a section.
    pub key: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// Variables of the Go original and of Rust, which count when `variable` is not set; the first that is set wins.
    pub old_variables: &'static [&'static str],
    /// Its flag, without the dashes.
    pub flag: &'static str,
    /// What it is when nobody says anything.
    pub default: &'static str,
    /// How it is read.
    pub kind: Kind,
    /// What it means.
    pub help: &'static str,
}

/// The variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "VK_CONFIG";

const fn text(
    key: &'static str,
    variable: &'static str,
    old_variables: &'static [&'static str],
    flag: &'static str,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting { key, variable, old_variables, flag, default, kind: Kind::Text, help }
}

impl Setting {
    const fn of(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }
}

/// All settings but the lists `nodes` and `taints`, which are written in the file only.
#[rustfmt::skip]
pub const SETTINGS: &[Setting] = &[
    text("kubeconfig", "VK_KUBECONFIG", &["KUBECONFIG"], "kubeconfig", "the pod's service account, else `~/.kube/config`",
        "The kubeconfig file that says how to reach the API server"),
    text("bootstrapKubeconfig", "VK_BOOTSTRAP_KUBECONFIG", &[], "bootstrap-kubeconfig", "none",
        "A kubeconfig, usually with a bootstrap token, by which the node asks for a certificate of its own while it has no valid one; `kubeconfig` is then the file that is written"),
    text("impersonateNodes", "VK_IMPERSONATE_NODES", &[], "impersonate-nodes", "`auto`",
        "Whether what pods refer to is read as `system:node:NAME` of their node: `on`, `off`, or `auto`: where the process is no node itself and may impersonate all of its nodes"),
    text("apiServer", "VK_API_SERVER", &["MASTER_URI"], "api-server", "from the kubeconfig",
        "URL of the API server, instead of the one in the kubeconfig"),
    text("nodeName", "VK_NODE_NAME", &["DEFAULT_NODE_NAME", "DEFAULTNODE_NAME"], "nodename", "`virtual-kubelet`",
        "The name of the node, when `nodes` does not name it"),
    text("provider", "VK_PROVIDER", &[], "provider", "none: one must be given",
        "The provider that runs the pods; see `virtual-kubelet providers`"),
    text("providerConfig", "VK_PROVIDER_CONFIG", &[], "provider-config", "none",
        "The provider's own configuration: the path of a file (in the configuration file also a section)"),
    text("clientKubeconfig", "VK_CLIENT_KUBECONFIG", &[], "client-kubeconfig", "the cluster that the process runs in",
        "With the provider `cluster`: the kubeconfig file of the lower cluster; becomes `kubeconfig` of the provider's configuration"),
    text("ignoreLabels", "VK_IGNORE_LABELS", &[], "ignore-labels", "`pod-group.scheduling.sigs.k8s.io`",
        "With the provider `cluster`: labels of pods that the lower cluster does not get: `key,...`; becomes `ignoreLabels` of the provider's configuration").of(Kind::List),
    text("os", "VK_OS", &[], "os", "`linux`", "What the pods run on: linux or windows"),
    text("clusterDomain", "VK_CLUSTER_DOMAIN", &[], "cluster-domain", "`cluster.local`", "The DNS domain of the cluster"),
    text("address", "VK_ADDRESS", &[], "address", "all interfaces", "The IP address that the kubelet API listens on"),
    text("internalIP", "VK_INTERNAL_IP", &["VKUBELET_POD_IP"], "internal-ip", "the address of this machine towards the API server",
        "The IP address that the node tells the cluster"),
    text("externalIP", "VK_EXTERNAL_IP", &["VKUBELET_EXTERNAL_POD_IP"], "external-ip", "none",
        "Another IP address that the node tells the cluster, for those who are not in its network"),
    text("port", "VK_PORT", &["KUBELET_PORT"], "port", "`10250`",
        "The port of the kubelet API; further nodes on the same address count up from it").of(Kind::Number),
    text("taint.key", "VK_TAINT_KEY", &["VKUBELET_TAINT_KEY"], "taint", "`virtual-kubelet.io/provider`",
        "The key of the taint that keeps ordinary pods off the node"),
    text("taint.value", "VK_TAINT_VALUE", &["VKUBELET_TAINT_VALUE"], "taint-value", "the provider's name", "The value of that taint"),
    text("taint.effect", "VK_TAINT_EFFECT", &["VKUBELET_TAINT_EFFECT"], "taint-effect", "`NoSchedule`",
        "The effect of that taint: NoSchedule, PreferNoSchedule or NoExecute"),
    text("disableTaint", "VK_DISABLE_TAINT", &[], "disable-taint", "`false`", "Leave that taint out").of(Kind::Switch),
    text("labels", "VK_LABELS", &["VKUBELET_NODE_LABEL"], "labels", "none", "Labels of the nodes, beside those in the file: `key=value,...`").of(Kind::Map),
    text("annotations", "VK_ANNOTATIONS", &[], "annotations", "none",
        "Annotations of the nodes, beside those in the file: `key=value,...`").of(Kind::Map),
    text("pingInterval", "VK_PING_INTERVAL", &[], "ping-interval", "`10s`", "How often the provider is asked whether it is well"),
    text("pingTimeout", "VK_PING_TIMEOUT", &[], "ping-timeout", "`10s`", "How long the provider may take to answer that; more than 0"),
    text("statusInterval", "VK_STATUS_INTERVAL", &[], "status-interval", "`5m`",
        "How often the node's status is written even when nothing changed"),
    text("leaderElect", "VK_LEADER_ELECT", &[], "leader-elect", "`false`",
        "Let several processes run the same nodes: one leads each node, the others stand by").of(Kind::Switch),
    text("leaseDuration", "VK_LEASE_DURATION", &[], "lease-duration", "`40s`, with `leaderElect` `15s`",
        "How long the node's lease holds, at least 4s; it is renewed every quarter of that"),
    text("renewDeadline", "VK_RENEW_DEADLINE", &[], "renew-deadline", "two thirds of `leaseDuration`",
        "How long after the lease was renewed writes may begin; at least half of `leaseDuration` and a second less than it"),
    text("retryPeriod", "VK_RETRY_PERIOD", &[], "retry-period", "`1s`",
        "With `leaderElect`: how often a process that stands by looks whether the lease is free; less than `leaseDuration`"),
    text("pods.admission", "VK_PODS_ADMISSION", &[], "pod-admission", "`auto`",
        "What a node checks before it takes a pod: `full` as a kubelet does, `placement` only operating system, affinity and taints, `off` nothing; `auto` is `placement` for providers with elastic capacity, else `full`"),
    text("pods.daemonSets", "VK_PODS_DAEMON_SETS", &[], "daemon-set-pods", "`run`",
        "What becomes of pods of DaemonSets: `run`, `fail`, or `hold` them Pending"),
    text("pods.refused", "VK_PODS_REFUSED", &[], "refused-pods", "`fail`",
        "What becomes of pods that the provider refuses for good: `fail`, or `hold` them Pending until they are changed"),
    text("pods.forceDeleteAfter", "VK_PODS_FORCE_DELETE_AFTER", &[], "force-delete-after", "`0`",
        "How long after its grace period a pod that does not stop leaves the API server all the same; 0 for never"),
    text("pods.eventsPerSecond", "VK_PODS_EVENTS_PER_SECOND", &[], "event-qps", "`50`",
        "How many events about pods a node writes in a second; twice as many in a burst").of(Kind::Number),
    text("shutdown.timeout", "VK_SHUTDOWN_TIMEOUT", &[], "shutdown-timeout", "`10s`", "How long the process may take to end its work"),
    text("shutdown.node", "VK_SHUTDOWN_NODE", &[], "shutdown-node", "`leave`",
        "What becomes of the Node when the process stops: `leave` marks it NotReady and keeps it, `delete` deletes it"),
    text("metricsAddr", "VK_METRICS_ADDR", &[], "metrics-addr", "`:10255`",
        "Where /healthz, /readyz and /metrics are served; `off` for nowhere"),
    text("log.level", "VK_LOG_LEVEL", &["RUST_LOG"], "log-level", "`info`",
        "How much is logged: trace, debug, info, warn, error, fatal, panic, or directives such as `info,vk_node=debug`"),
    text("log.format", "VK_LOG_FORMAT", &[], "log-format", "`auto`", "How log lines look: text, json, or auto: text on a terminal, JSON elsewhere"),
    text("startupTimeout", "VK_STARTUP_TIMEOUT", &[], "startup-timeout", "`30s`",
        "How long the API server and the backend may take to answer at the start before the process gives up; 0 for as long as it takes"),
    text("streamIdleTimeout", "VK_STREAM_IDLE_TIMEOUT", &[], "stream-idle-timeout", "`4h`",
        "How long exec, attach and port-forward may be silent before they are closed"),
    text("streamCreationTimeout", "VK_STREAM_CREATION_TIMEOUT", &[], "stream-creation-timeout", "`30s`",
        "How long a client may take to open its streams"),
    text("streamWebSockets", "VK_STREAM_WEB_SOCKETS", &[], "stream-websockets", "`true`",
        "Let the API server (1.36 or newer) pass WebSockets of exec, attach and port-forward on to the node, which it else turns into SPDY").of(Kind::Switch),
    text("systemLogs", "VK_SYSTEM_LOGS", &[], "system-logs", "none",
        "A folder of log files that the kubelet API shows under /logs/ to callers who may read `nodes/log`"),
    text("profiling", "VK_PROFILING", &[], "profiling", "`false`",
        "Show under /debug/pprof/ of the kubelet API what the process is busy with").of(Kind::Switch),
    text("stateDir", "VK_STATE_DIR", &[], "state-dir",
        "`/var/lib/virtual-kubelet` for root, else `$XDG_STATE_HOME/virtual-kubelet` or `~/.local/state/virtual-kubelet`",
        "Where providers keep what must survive a restart"),
    text("tls.certFile", "VK_TLS_CERT_FILE", &["APISERVER_CERT_LOCATION"], "tls-cert-file", "a certificate from the cluster",
        "The serving certificate of the kubelet API with its chain, in PEM"),
    text("tls.keyFile", "VK_TLS_KEY_FILE", &["APISERVER_KEY_LOCATION"], "tls-private-key-file", "a key of its own",
        "The key of the serving certificate, in PEM"),
    text("tls.clientCAFile", "VK_TLS_CLIENT_CA_FILE", &["APISERVER_CA_CERT_LOCATION"], "client-verify-ca", "the cluster's client authority",
        "The authorities whose client certificates are accepted, in PEM"),
    text("tls.request", "VK_TLS_REQUEST", &[], "rotate-server-certificates", "`true`",
        "Without `tls.certFile`: ask the cluster for a serving certificate and renew it; somebody has to approve the request").of(Kind::Switch),
    text("auth.tokenTTL", "VK_AUTH_TOKEN_TTL", &[], "authentication-token-webhook-cache-ttl", "`2m`",
        "How long it is remembered who a token belongs to; 0 for the default"),
    text("auth.authorizedTTL", "VK_AUTH_AUTHORIZED_TTL", &[], "authorization-webhook-cache-authorized-ttl", "`5m`",
        "How long it is remembered that a caller may do something; 0 for the default"),
    text("auth.unauthorizedTTL", "VK_AUTH_UNAUTHORIZED_TTL", &[], "authorization-webhook-cache-unauthorized-ttl", "`30s`",
        "How long it is remembered that a caller may not do something; 0 for the default"),
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fmt::Write};

    use super::*;
    use crate::config::{RETIRED, RETIRED_VARIABLES};

    /// The reference, which is part of the documentation.
    const PAGE: &str = include_str!("../../../docs/reference/configuration.md");

    fn row(setting: &Setting) -> String {
        let old: Vec<String> = setting.old_variables.iter().map(|name| format!("`{name}`")).collect();
        let Setting { key, variable, flag, default, help, .. } = setting;
        format!("| `{key}` | `{variable}` | {} | `--{flag}` | {default} | {help} |", old.join(", "))
    }

    #[test]
    fn the_reference_has_a_row_for_every_setting() {
        let missing: Vec<String> =
            SETTINGS.iter().map(row).filter(|row| !PAGE.contains(row.as_str())).collect();
        assert!(
            missing.is_empty(),
            "docs/reference/configuration.md lacks these rows:\n{}",
            missing.join("\n")
        );
    }

    #[test]
    fn the_reference_has_a_row_for_every_retired_flag_and_variable() {
        let mut missing = String::new();
        for (name, instead) in RETIRED
            .iter()
            .map(|retired| (format!("--{}", retired.flag), retired.instead))
            .chain(RETIRED_VARIABLES.iter().map(|(name, instead)| ((*name).to_owned(), *instead)))
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
        let variables = SETTINGS.iter().flat_map(|s| s.old_variables.iter().copied().chain([s.variable]));
        for name in variables.chain(SETTINGS.iter().map(|s| s.flag)).chain(RETIRED.iter().map(|r| r.flag)) {
            assert!(seen.insert(name), "{name} is used twice");
        }
    }

    #[test]
    fn the_variable_follows_from_the_key() {
        for setting in SETTINGS {
            let mut expected = String::from("VK");
            let mut upper_before = false;
            for word in setting.key.split('.') {
                expected.push('_');
                for (place, letter) in word.chars().enumerate() {
                    if letter.is_ascii_uppercase() && place > 0 && !upper_before {
                        expected.push('_');
                    }
                    upper_before = letter.is_ascii_uppercase();
                    expected.push(letter.to_ascii_uppercase());
                }
            }
            // `clientCAFile` is the one key in which an abbreviation stands before another word.
            assert_eq!(setting.variable.replace("CA_FILE", "CAFILE"), expected, "{}", setting.key);
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
