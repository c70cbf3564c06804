//! The lower pod of an upper one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use serde::Deserialize;
use serde_json::Value;

use self::{last_applied::LastApplied, rewrite::PodRewriter, scheduling::LowerOverrides};
use crate::names::{self, NamespaceMapping, Owner};

mod api_access;
mod host_access;
mod last_applied;
mod metadata;
mod rewrite;
mod scheduling;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use self::api_access::is_api_access;
pub use self::{
    api_access::api_access,
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
pub struct Policy {
    /// What namespaces are called below.
    pub namespaces: NamespaceMapping,
    /// What lower nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// What lower pods tolerate beside what the upper pod says.
    pub tolerations: Vec<Toleration>,
    /// Labels of pods that stay above.
    pub ignored_labels: Vec<String>,
    /// Annotations of pods that stay above.
    pub ignored_annotations: Vec<String>,
    /// Whether affinity to other pods holds below.
    pub keeps_pod_affinity: bool,
    /// Whether pods may have the lower node's namespaces, paths and rights.
    pub host_access: bool,
    /// Which API server the service accounts of pods are of.
    pub access: Access,
    /// What PriorityClasses are called below; others keep their names, where there are such.
    pub priority_classes: BTreeMap<String, String>,
    /// What RuntimeClasses are called below; others keep their names, where there are such.
    pub runtime_classes: BTreeMap<String, String>,
}

/// Which API server a pod's service account is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// The lower one's.
    #[default]
    Lower,
    /// The pod has none.
    None,
}

/// What the lower cluster has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterClasses {
    /// Names of its PriorityClasses.
    pub priority_classes: BTreeSet<String>,
    /// Names of its RuntimeClasses.
    pub runtime_classes: BTreeSet<String>,
}

/// A pod for the lower cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Translated {
    /// To be created as it is.
    pub pod: Pod,
    /// The sum of what it was made of, which it has as an annotation: what was made of the same needs no update.
    pub input: String,
}

/// Why a pod is not offered to the lower cluster: words for its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejection(pub String);

// === impl Policy ===

impl Default for Policy {
    fn default() -> Self {
        Self {
            namespaces: NamespaceMapping::Same,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            ignored_labels: vec!["pod-group.scheduling.sigs.k8s.io".to_owned()],
            ignored_annotations: Vec::new(),
            keeps_pod_affinity: true,
            host_access: true,
            access: Access::Lower,
            priority_classes: BTreeMap::new(),
            runtime_classes: BTreeMap::new(),
        }
    }
}

/// Makes the lower pod of an upper one, by [`RULES`]. Ephemeral containers are not in it: the API server takes them later, see [`update()`].
pub fn translate(
    upper: &Pod,
    owner: &Owner,
    policy: &Policy,
    classes: &ClusterClasses,
) -> Result<Translated, Rejection> {
    let rewriter = PodRewriter::of(upper, policy)?;
    let lower = LowerOverrides::from_annotations(rewriter.meta)?;
    let spec = upper.spec.as_ref().ok_or_else(|| Rejection("the pod has no spec".to_owned()))?;
    check(spec, policy)?;

    let mut below = without_dropped(spec)?;
    scheduling::set_classes(&mut below, spec, &lower, policy, classes)?;
    scheduling::set_placement(&mut below, spec, lower, policy)?;
    rewriter.fit(&mut below);

    let mut pod =
        Pod { metadata: metadata::below(&rewriter, owner, policy), spec: Some(below), status: None };
    let input =
        names::sha256_hex(&serde_json::to_vec(&pod).map_err(|error| Rejection(format!("the pod: {error}")))?);
    let applied = LastApplied::of(&pod).written();
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
fn check(spec: &PodSpec, policy: &Policy) -> Result<(), Rejection> {
    if spec.containers.is_empty() {
        return Err(Rejection("spec.containers: there is none".to_owned()));
    }
    if let Some(claim) = spec.resource_claims.iter().flatten().next() {
        return Err(Rejection(format!(
            "spec.resourceClaims: {}: devices of the upper cluster cannot be claimed in another one: take the claims out, or \
             keep the pod off this node",
            claim.name
        )));
    }
    if policy.host_access { Ok(()) } else { host_access::check(&host_access::fields_used(spec)) }
}
