//! The manifests that make an API server convert pods: an admission policy for Kubernetes 1.36 and later, and the configuration of the
//! [webhook](crate::webhook) for older versions.
//!
//! The policy has the rules of [`convert`](mod@crate::convert) in CEL, and its [`Settings`] in a ConfigMap. It needs no server and no
//! certificate. A test creates the same pods through both and compares them.
//!
//! One rule is in the policy only: new pods avoid the nodes that the ConfigMap lists for their controller (the [avoid table](crate::avoid)),
//! by a preferred node affinity. [`convert`](mod@crate::convert) and the webhook do not see the ConfigMap, so where the webhook converts pods,
//! the scheduler does not know these nodes.

#[cfg(test)]
mod tests;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    avoid,
    convert::{Settings, reason},
    names,
    webhook::{NAMESPACES_PATH, PODS_PATH},
};

/// The first minor version of Kubernetes 1 that has admission policies which change objects, enabled and in version v1.
pub const FIRST_MINOR: u32 = 36;
/// The oldest minor version whose API server and kube-scheduler placement is tested with.
pub const FIRST_TESTED_MINOR: u32 = 33;
/// The name of the policy, its ConfigMap, the webhook configuration and its Service.
pub const NAME: &str = "virtual-kubelet-placement";

/// How many nodes the policy reads for one controller, from the start of the value. It ignores what follows.
pub const MAX_AVOIDED_NODES: usize = 100;

const POLICY: &str = include_str!("policy/policy.yaml");
const WEBHOOK: &str = include_str!("policy/webhook.yaml");
/// The version that the manifests name.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What happens to pods that cannot be converted, because the policy fails or the webhook does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// They are refused. A pod that is not converted may wait for ever.
    #[default]
    Fail,
    /// They are created as they are.
    Ignore,
}

/// What to say about a cluster of this minor version; `None` if placement is tested with it.
pub fn untested_version(minor: u32) -> Option<String> {
    (minor < FIRST_TESTED_MINOR).then(|| {
        format!("the API server is of version 1.{minor}; placement is tested with 1.{FIRST_TESTED_MINOR} and later")
    })
}

/// Where the API server calls the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookAddress {
    /// A Service with the name [`NAME`].
    Service {
        /// Its namespace.
        namespace: String,
        /// Its port.
        port: u16,
    },
    /// A URL `https://host:port`.
    Url(String),
}

// === impl FailurePolicy ===

impl FailurePolicy {
    fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// The admission policy, its two bindings and its ConfigMap, as YAML.
pub fn admission_policy(settings: &Settings, namespace: &str, failure_policy: FailurePolicy) -> String {
    let lost = names::LOST_TAINTS;
    let values = [
        ("failure-policy", failure_policy.as_str().to_owned()),
        ("namespace", namespace.to_owned()),
        ("upper-keys", settings.upper_keys.join(",")),
        ("settings-gate", gate_line(settings)),
        ("settings-tolerate-lost", settings.tolerate_lost.to_string()),
        ("origin", names::ORIGIN.to_owned()),
        ("prefix", names::PREFIX.to_owned()),
        ("lower", names::LOWER.to_owned()),
        ("cluster-selector", names::CLUSTER_SELECTOR.to_owned()),
        ("lower-nodes", names::LOWER_NODES.to_owned()),
        ("lower-spread", names::LOWER_SPREAD.to_owned()),
        ("not-converted", names::NOT_CONVERTED.to_owned()),
        ("tolerates-lost", names::TOLERATES_LOST.to_owned()),
        ("mixed-terms", reason::MIXED_TERMS.to_owned()),
        ("lower-is-set", reason::LOWER_IS_SET.to_owned()),
        ("soft-exists", reason::SOFT_EXISTS.to_owned()),
        ("hostname", names::HOSTNAME.to_owned()),
        ("machine", names::MACHINE.to_owned()),
        ("taint", names::TAINT.to_owned()),
        ("lost-taints", lost.map(|taint| format!("'{taint}'")).join(", ")),
        ("lost-pairs", lost.map(|taint| format!("['{taint}', 'NoExecute']")).join(", ")),
        ("default-toleration-seconds", names::DEFAULT_TOLERATION_SECONDS.to_string()),
        ("gate", names::GATE.to_owned()),
        ("avoid-prefix", avoid::KEY_PREFIX.to_owned()),
        ("max-avoided-nodes", MAX_AVOIDED_NODES.to_string()),
        (
            "node-affinity",
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
        ),
        (
            "preferred",
            "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution".to_owned(),
        ),
        (
            "pod-anti-affinity",
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
        ),
    ];
    render(POLICY, &values)
}

/// The configuration that makes an API server call the webhook, and the ConfigMap of the placement process, as YAML. Without a CA (in PEM), the
/// API server trusts the CAs of its machine.
pub fn webhook_configuration(
    address: &WebhookAddress,
    ca_pem: Option<&str>,
    settings: &Settings,
    namespace: &str,
    failure_policy: FailurePolicy,
) -> String {
    let client = |path: &str| {
        let address = match address {
            WebhookAddress::Service { namespace, port } => {
                format!("service: {{name: {NAME}, namespace: {namespace}, path: {path}, port: {port}}}")
            }
            WebhookAddress::Url(url) => format!("url: {}{path}", url.trim_end_matches('/')),
        };
        let bundle = ca_pem.map(|pem| format!("caBundle: {}", STANDARD.encode(pem)));
        [address].into_iter().chain(bundle).collect::<Vec<_>>().join("\n    ")
    };
    let values = [
        ("failure-policy", failure_policy.as_str().to_owned()),
        ("pods-client", client(PODS_PATH)),
        ("namespaces-client", client(NAMESPACES_PATH)),
        ("namespace", namespace.to_owned()),
        ("settings-gate", (settings.gate == Some(true)).to_string()),
    ];
    render(WEBHOOK, &values)
}

/// The line of the ConfigMap that says whether pods are gated. Without it the placement process decides.
fn gate_line(settings: &Settings) -> String {
    settings.gate.map_or_else(
        || "# gate: the placement process adds it when it starts with --gates".to_owned(),
        |gate| format!("gate: \"{gate}\""),
    )
}

/// Fills in a template.
pub(crate) fn render(template: &str, values: &[(&str, String)]) -> String {
    let common = [
        ("version", VERSION),
        ("kube-system", names::KUBE_SYSTEM),
        ("virtual-pod", names::VIRTUAL_POD),
        ("offload", names::OFFLOAD),
    ];
    let values = values.iter().map(|(name, value)| (*name, value.as_str())).chain(common);
    values.fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}
