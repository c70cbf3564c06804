//! Whether pods are converted, by the policy or the webhook of this version.

use serde_json::Value;
use vk_kube::{Error, ServerVersion};
use vk_provider::Finding;

use super::{Doctor, text};
use crate::policy::{FIRST_MINOR, NAME, VERSION, untested_version};

const PRINT_POLICY: &str = "apply the output of `virtual-kubelet placement print policy`";

/// What converts pods.
#[derive(Debug, Default)]
pub(super) struct SetupObjects {
    pub(super) policy: Option<Value>,
    /// The bindings for pods and for namespaces.
    pub(super) bindings: [Option<Value>; 2],
    pub(super) webhook: Option<Value>,
    pub(super) settings: Option<Value>,
}

// === impl SetupObjects ===

impl SetupObjects {
    pub(super) async fn read(doctor: &Doctor<'_>) -> Result<Self, Error> {
        let binding = async |suffix: &str| {
            let name = format!("{NAME}-{suffix}");
            doctor.find_registration("mutatingadmissionpolicybindings", &name).await
        };
        let map = format!("/api/v1/namespaces/{}/configmaps/{NAME}", doctor.namespace);
        Ok(Self {
            policy: doctor.find_registration("mutatingadmissionpolicies", NAME).await?,
            bindings: [binding("pods").await?, binding("namespaces").await?],
            webhook: doctor.find_registration("mutatingwebhookconfigurations", NAME).await?,
            settings: doctor.find("configmaps", &map).await?,
        })
    }

    pub(super) fn findings(&self, server: ServerVersion, namespace: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(found) = untested_version(server.minor) {
            findings.push(Finding::warning("API server", found, "try the parts that you use"));
        }
        match (&self.policy, &self.webhook) {
            (Some(policy), _) => findings.push(self.policy_finding(policy, namespace)),
            (None, Some(webhook)) => findings.push(webhook_finding(webhook)),
            (None, None) => {
                let kind = if server.minor >= FIRST_MINOR { "policy" } else { "webhook configuration" };
                let found = format!("there is no {kind} {NAME}: pods are not converted");
                findings.push(Finding::warning("policy", found, PRINT_POLICY));
            }
        }
        if self.policy.is_some() && self.webhook.is_some() {
            let found = "pods are converted by a policy and by a webhook";
            let remedy = format!("delete mutatingwebhookconfiguration {NAME}");
            findings.push(Finding::warning("webhook", found, remedy));
        }
        findings
    }

    fn policy_finding(&self, policy: &Value, namespace: &str) -> Finding {
        if self.settings.is_none() {
            let found = format!("ConfigMap {namespace}/{NAME} is missing: pods that opt in are refused");
            return Finding::error("policy", found, PRINT_POLICY);
        }
        if self.bindings.iter().any(Option::is_none) {
            let found = format!(
                "one of the bindings {NAME}-pods and {NAME}-namespaces is missing: not all pods are converted"
            );
            return Finding::error("policy", found, PRINT_POLICY);
        }
        check_version("policy", policy)
            .unwrap_or_else(|| Finding::ok("policy", format!("version {VERSION} converts pods")))
    }
}

fn webhook_finding(webhook: &Value) -> Finding {
    let webhooks = webhook["webhooks"].as_array().cloned().unwrap_or_default();
    if webhooks.iter().any(|one| text(one, "/clientConfig/caBundle").is_none_or(str::is_empty)) {
        let found =
            "the webhook configuration has no CA: the API server trusts only certificates of public CAs";
        let remedy = "run `virtual-kubelet webhook` without --tlscert, which writes its own with the permission of `placement print rbac --webhook`, or print the policy with --webhook-ca";
        return Finding::warning("webhook", found, remedy);
    }
    check_version("webhook", webhook).unwrap_or_else(|| {
        Finding::ok("webhook", format!("its configuration of version {VERSION} converts pods"))
    })
}

/// A warning if an object was printed by another version.
fn check_version(what: &str, object: &Value) -> Option<Finding> {
    let version = text(object, "/metadata/labels/app.kubernetes.io~1version").unwrap_or("unknown");
    let found = format!(
        "it is of version {version}, and this is {VERSION}: pods may be converted otherwise than documented"
    );
    (version != VERSION).then(|| Finding::warning(what, found, PRINT_POLICY))
}
