//! The manifests that let the placement process do its work, and nothing else: a ServiceAccount, its roles, and an admission policy that
//! limits how it may change pods.
//!
//! RBAC can only allow the process to change every field of every pod. The policy, called the guard, compares the pod before and after:
//! placement may remove its own scheduling gate, pin a pod that it releases to a node, nominate a node, and set the label, annotations and
//! conditions that it needs. Other keys with our prefix are not its own: by some of them a virtual node knows its lower pods. A second policy
//! limits which Secret it may create. They need Kubernetes 1.30; the roles alone work with older versions, without these limits.

#[cfg(test)]
mod tests;

use serde::Deserialize;
use vk_kube::access::AccessCheck;
use vk_provider::placement::{TRIAL_LABEL, TRIAL_UNTIL_ANNOTATION};

use crate::{certificate, names, policy};

/// The name of the ServiceAccount, of its roles, and of the Lease and the ConfigMap that they name.
pub const NAME: &str = policy::NAME;

/// The name of the policy that limits the account, and of its binding.
pub const GUARD: &str = "virtual-kubelet-placement-guard";

/// The name of the policy that limits which Secrets the account may create, and of its binding.
pub const SECRET_GUARD: &str = "virtual-kubelet-placement-guard-secrets";

const RBAC: &str = include_str!("rbac/rbac.yaml");
const WEBHOOK: &str = include_str!("rbac/webhook.yaml");

/// The user name of the ServiceAccount in a namespace.
pub fn user(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:{NAME}")
}

/// The guards, the ServiceAccount, and its roles, as YAML. The ServiceAccount, its Leases, its ConfigMap and its Secret are in this namespace.
pub fn manifests(namespace: &str) -> String {
    let values = [
        ("namespace", namespace.to_owned()),
        ("user", user(namespace)),
        ("trial", TRIAL_LABEL.to_owned()),
        ("trial-until", TRIAL_UNTIL_ANNOTATION.to_owned()),
        ("pinned", names::PINNED.to_owned()),
        ("placed", names::PLACED.to_owned()),
        ("scheduled", names::SCHEDULED.to_owned()),
        ("gate", names::GATE.to_owned()),
        ("hostname", names::HOSTNAME.to_owned()),
        ("secret", certificate::SECRET.to_owned()),
        ("serving-lease", names::SERVING_LEASE.to_owned()),
    ];
    policy::render(RBAC, &values)
}

/// The permission to write the CAs to the configuration of the webhook, and a guard that permits no other change of it, as YAML. For those who
/// use the webhook with the certificates of placement.
pub fn webhook_manifests(namespace: &str) -> String {
    policy::render(WEBHOOK, &[("namespace", namespace.to_owned()), ("user", user(namespace))])
}

/// The permissions that the roles grant, one by one.
pub fn permissions(namespace: &str) -> Vec<AccessCheck> {
    let text = manifests(namespace);
    let documents =
        text.split("\n---\n").filter_map(|document| serde_saphyr::from_str::<Role>(document).ok());
    let mut all = Vec::new();
    for role in documents {
        for rule in role.rules {
            let names =
                if rule.resource_names.is_empty() { vec![String::new()] } else { rule.resource_names };
            for (group, resource) in
                rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |it| (group, it)))
            {
                for (name, verb) in
                    names.iter().flat_map(|name| rule.verbs.iter().map(move |verb| (name, verb)))
                {
                    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                    all.push(AccessCheck {
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: resource.to_owned(),
                        subresource: subresource.to_owned(),
                        namespace: role.metadata.namespace.clone(),
                        name: name.clone(),
                    });
                }
            }
        }
    }
    all
}

/// A Role or ClusterRole. Other manifests have no rules.
#[derive(Debug, Deserialize)]
struct Role {
    metadata: RoleMetadata,
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct RoleMetadata {
    #[serde(default)]
    namespace: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}
