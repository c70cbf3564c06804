//! Deprecated flags and variables of the Go original and of tensile-kube. They are accepted, so that old command lines still
//! work, and have no effect; except for flags whose effect somebody would miss, which are refused.

/// A flag without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeprecatedFlag {
    /// Name, without the dashes.
    pub flag: &'static str,
    /// Whether the value is optional.
    pub switch: bool,
    /// Whether the process does not start with it. An empty value is always accepted.
    pub refused: bool,
    /// Why it has no effect, and what replaces it.
    pub instead: &'static str,
}

const KLOG: &str = "logs are written by `--log-level` and `--log-format`";
const TRACES: &str = "the exporters of the Go original are gone; metrics are at `--metrics-addr`";
const ALWAYS_ASKED: &str = "callers are always authenticated and authorised by the API server";
const NO_LIMIT: &str = "ordinary requests are not limited, only retries are";

const COPIED: &str =
    "what pods refer to is always copied to the lower cluster, claims among it; Services are not copied yet";
const ACCOUNTS: &str = "service accounts are made as `apiAccess` of the provider's configuration says";

const fn value(flag: &'static str, instead: &'static str) -> DeprecatedFlag {
    DeprecatedFlag { flag, switch: false, refused: false, instead }
}

const fn switch(flag: &'static str, instead: &'static str) -> DeprecatedFlag {
    DeprecatedFlag { flag, switch: true, refused: false, instead }
}

const fn refused(flag: &'static str, instead: &'static str) -> DeprecatedFlag {
    DeprecatedFlag { flag, switch: false, refused: true, instead }
}

/// All deprecated flags.
pub const DEPRECATED_FLAGS: &[DeprecatedFlag] = &[
    refused(
        "namespace",
        "a node runs the pods of every namespace that are bound to it; remove the flag, and let the API server refuse the others \
         with deploy/one-namespace.yaml",
    ),
    switch("enable-node-lease", "the lease is always on; see `--lease-duration`"),
    value("pod-sync-workers", "every pod is worked on by itself; there is nothing to size"),
    value("full-resync-period", "the API server and the provider are compared all the time"),
    value("kube-api-qps", NO_LIMIT),
    value("kube-api-burst", NO_LIMIT),
    value("client-qps", NO_LIMIT),
    value("client-burst", NO_LIMIT),
    value("enable-controllers", COPIED),
    switch("enable-serviceaccount", ACCOUNTS),
    switch("no-verify-clients", ALWAYS_ASKED),
    switch("authentication-token-webhook", ALWAYS_ASKED),
    value("trace-exporter", TRACES),
    value("trace-service-name", TRACES),
    value("trace-tag", TRACES),
    value("trace-sample-rate", TRACES),
    value("trace-zpages-addr", TRACES),
    switch("klog.add_dir_header", KLOG),
    switch("klog.alsologtostderr", KLOG),
    switch("klog.legacy_stderr_threshold_behavior", KLOG),
    value("klog.log_backtrace_at", KLOG),
    value("klog.log_dir", KLOG),
    value("klog.log_file", KLOG),
    value("klog.log_file_max_size", KLOG),
    switch("klog.logtostderr", KLOG),
    switch("klog.one_output", KLOG),
    switch("klog.skip_headers", KLOG),
    switch("klog.skip_log_headers", KLOG),
    value("klog.stderrthreshold", KLOG),
    value("klog.v", KLOG),
    value("klog.vmodule", KLOG),
];

/// All deprecated variables with the reason.
pub const DEPRECATED_VARIABLES: &[(&str, &str)] = &[
    ("ZPAGES_PORT", TRACES),
    ("ZPAGES_ADDR", TRACES),
    ("JAEGER_COLLECTOR_ENDPOINT", TRACES),
    ("JAEGER_AGENT_ENDPOINT", TRACES),
    ("JAEGER_USER", TRACES),
    ("JAEGER_PASSWORD", TRACES),
    ("OCAGENT_ENDPOINT", TRACES),
    ("OCAGENT_INSECURE", TRACES),
];
