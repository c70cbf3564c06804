//! The manifests that make an API server convert pods: an admission policy for Kubernetes 1.36 and later, and the configuration of the
//! [webhook](crate::webhook) for older versions.
//!
//! The policy has the rules of [`convert`](mod@crate::convert) in CEL, and its [`Settings`] in a ConfigMap. It needs no server and no
//! certificate. A test creates the same pods through both and compares them.

#[cfg(test)]
mod tests;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    convert::{Settings, reason},
    names,
    webhook::{NAMESPACES_PATH, PODS_PATH},
};

/// The first minor version of Kubernetes 1 that has admission policies which change objects, enabled and in version v1.
pub const FIRST_MINOR: u32 = 36;
/// The name of the policy, its ConfigMap, the webhook configuration and its Service.
pub const NAME: &str = "virtual-kubelet-placement";

const POLICY: &str = include_str!("policy/policy.yaml");
const WEBHOOK: &str = include_str!("policy/webhook.yaml");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What happens to pods that cannot be converted, because the policy fails or the webhook does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// They are refused. A pod that is not converted may wait for ever.
    #[default]
    Fail,
    /// They are created as they are.
    Ignore,
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
        ("settings-gate", settings.gate.to_string()),
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
        (
            "node-affinity",
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
        ),
        (
            "pod-anti-affinity",
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
        ),
    ];
    render(POLICY, &values)
}

/// The configuration that makes an API server call the webhook, as YAML. Without a CA (in PEM), the API server trusts the CAs of its machine.
pub fn webhook_configuration(
    address: &WebhookAddress,
    ca_pem: Option<&str>,
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
    ];
    render(WEBHOOK, &values)
}

/// Fills in a template.
fn render(template: &str, values: &[(&str, String)]) -> String {
    let common = [
        ("version", VERSION),
        ("kube-system", names::KUBE_SYSTEM),
        ("virtual-pod", names::VIRTUAL_POD),
        ("offload", names::OFFLOAD),
    ];
    let values = values.iter().map(|(name, value)| (*name, value.as_str())).chain(common);
    values.fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}
