//! Translates an upper pod into its lower pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use serde::Deserialize;
use serde_json::Value;

use self::{
    conversion::MovedConstraints, last_applied::LastApplied, rewrite::PodRewriter, scheduling::LowerOverrides,
};
use crate::names::{self, NamespaceMapping, OwnerId};

mod api_access;
mod choice;
mod conversion;
mod last_applied;
mod metadata;
mod pod_security;
mod rewrite;
mod scheduling;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use self::api_access::is_api_access;
pub use self::{
    api_access::{Accounts, api_access},
    choice::AllowedChoices,
    pod_security::PodSecurity,
    update::{Update, update},
};

/// Fields of `PodSpec` that the lower pod does not copy from the upper pod. By their JSON names, because some fields are missing in some
/// of the API versions that this is built for.
const NOT_COPIED: [&str; 18] = [
    "affinity",
    // Added later by [`update()`].
    "ephemeralContainers",
    // They watch evictions of the upper pod.
    "evictionResponders",
    // The lower scheduler chooses the node.
    "nodeName",
    "nodeSelector",
    // The lower admission sets it from the lower RuntimeClass and rejects a different value.
    "overhead",
    "preemptionPolicy",
    // The lower admission sets both this and `preemptionPolicy` from the lower PriorityClass.
    "priority",
    "priorityClassName",
    // Nobody would set their conditions in the lower cluster.
    "readinessGates",
    // Rejected by [`check`].
    "resourceClaims",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    // It names an object of the upper cluster.
    "schedulingGroup",
    // The deprecated alias of `serviceAccountName`.
    "serviceAccount",
    "tolerations",
    "topologySpreadConstraints",
];

/// The configuration of the translation.
#[derive(Clone, Debug, PartialEq)]
pub struct TranslationPolicy {
    /// Maps upper namespaces to lower ones.
    pub namespaces: NamespaceMapping,
    /// Labels that the lower node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of lower pods in addition to those of the upper pod.
    pub tolerations: Vec<Toleration>,
    /// Pod labels that are not copied.
    pub ignored_labels: Vec<String>,
    /// Pod annotations that are not copied.
    pub ignored_annotations: Vec<String>,
    /// Whether pod affinity is copied.
    pub keeps_pod_affinity: bool,
    /// What pods may do on lower machines.
    pub pod_security: PodSecurity,
    /// Whether pods have a token of the lower API server.
    pub access: ApiAccess,
    /// The service accounts of lower pods.
    pub accounts: Accounts,
    /// Names of PriorityClasses in the lower cluster, by those in the upper one.
    pub priority_classes: BTreeMap<String, String>,
    /// Names of RuntimeClasses in the lower cluster, by those in the upper one.
    pub runtime_classes: BTreeMap<String, String>,
    /// What pods may choose beside.
    pub allowed: AllowedChoices,
}

/// The API server that a pod has a token of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ApiAccess {
    /// The lower API server.
    Lower,
    /// The pod has no token.
    #[default]
    None,
}

/// The classes that exist in the lower cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterClasses {
    /// Names of PriorityClasses.
    pub priority_classes: BTreeSet<String>,
    /// Names of RuntimeClasses.
    pub runtime_classes: BTreeSet<String>,
}

/// A translated pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    /// The pod to create.
    pub pod: Pod,
    /// The hash of the pod, which is also an annotation: a pod with the same hash needs no update.
    pub input: String,
}

/// Why a pod cannot run in the lower cluster. The message is for its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejection(pub String);

// === impl TranslationPolicy ===

impl Default for TranslationPolicy {
    fn default() -> Self {
        Self {
            namespaces: NamespaceMapping::Same,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            ignored_labels: vec!["pod-group.scheduling.sigs.k8s.io".to_owned()],
            ignored_annotations: Vec::new(),
            keeps_pod_affinity: true,
            pod_security: PodSecurity::Baseline,
            access: ApiAccess::None,
            accounts: Accounts::default(),
            priority_classes: BTreeMap::new(),
            runtime_classes: BTreeMap::new(),
            allowed: AllowedChoices::default(),
        }
    }
}

/// Translates an upper pod into the lower pod. Ephemeral containers are not part of it, because the API server only accepts them later:
/// see [`update()`].
pub fn translate(
    upper: &Pod,
    owner: &OwnerId,
    policy: &TranslationPolicy,
    classes: &ClusterClasses,
) -> Result<Translated, Rejection> {
    let rewriter = PodRewriter::of(upper, owner, policy)?;
    let lower = LowerOverrides::from_annotations(rewriter.meta)?;
    let moved = MovedConstraints::from_annotations(rewriter.meta)?;
    let spec = upper.spec.as_ref().ok_or_else(|| Rejection("the pod has no spec".to_owned()))?;
    check(spec)?;
    policy.allowed.check_volumes(spec, rewriter.access)?;
    pod_security::check(rewriter.meta, spec, policy.pod_security)?;

    let mut below = without_dropped(spec)?;
    scheduling::set_classes(&mut below, spec, &lower, policy, classes)?;
    scheduling::set_placement(&mut below, spec, lower, &moved, policy)?;
    rewriter.rewrite_spec(&mut below);

    let mut pod =
        Pod { metadata: metadata::lower_metadata(&rewriter, owner, policy), spec: Some(below), status: None };
    let input =
        names::sha256_hex(&serde_json::to_vec(&pod).map_err(|error| Rejection(format!("the pod: {error}")))?);
    let applied = LastApplied::of(&pod).to_annotation();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(names::APPLIED.to_owned(), applied);
    annotations.insert(names::INPUT.to_owned(), input.clone());
    Ok(Translated { pod, input })
}

/// The spec without the fields that are not copied.
fn without_dropped(spec: &PodSpec) -> Result<PodSpec, Rejection> {
    let unreadable = |error: serde_json::Error| Rejection(format!("spec: {error}"));
    let mut value = serde_json::to_value(spec).map_err(unreadable)?;
    if let Value::Object(fields) = &mut value {
        for name in NOT_COPIED {
            fields.remove(name);
        }
    }
    serde_json::from_value(value).map_err(unreadable)
}

/// Rejects what the lower cluster cannot offer.
fn check(spec: &PodSpec) -> Result<(), Rejection> {
    if spec.containers.is_empty() {
        return Err(Rejection("spec.containers: the list is empty".to_owned()));
    }
    if let Some(claim) = spec.resource_claims.iter().flatten().next() {
        return Err(Rejection(format!(
            "spec.resourceClaims: {}: devices of the upper cluster cannot be used in another cluster: remove the claims, or \
             keep the pod off this node",
            claim.name
        )));
    }
    Ok(())
}
