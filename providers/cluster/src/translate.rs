//! The lower pod of an upper one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use serde::Deserialize;

use self::{applied::Applied, lower::Lower, twin::Twin};
use crate::names::{self, Namespaces, Owner};

mod access;
mod applied;
mod classes;
mod host;
mod lower;
mod metadata;
mod placement;
mod rules;
#[cfg(test)]
mod tests;
mod twin;
mod update;

pub(crate) use self::access::is_api_access;
pub use self::{
    access::access_of,
    rules::{CONTAINER_RULES, RULES, Rule, VOLUME_RULES},
    update::{Update, update},
};

/// What the operator wants of translations.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What namespaces are called below.
    pub namespaces: Namespaces,
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
pub struct Facts {
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
pub struct Reject(pub String);

// === impl Policy ===

impl Default for Policy {
    fn default() -> Self {
        Self {
            namespaces: Namespaces::Same,
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
pub fn translate(upper: &Pod, owner: &Owner, policy: &Policy, facts: &Facts) -> Result<Translated, Reject> {
    let twin = Twin::of(upper, policy)?;
    let lower = Lower::of(twin.meta)?;
    let spec = upper.spec.as_ref().ok_or_else(|| Reject("the pod has no spec".to_owned()))?;
    refuse(spec, policy)?;

    let mut below = rules::without_dropped(spec)?;
    classes::choose(&mut below, spec, &lower, policy, facts)?;
    placement::place(&mut below, spec, lower, policy)?;
    twin.fit(&mut below);

    let mut pod = Pod { metadata: metadata::below(&twin, owner, policy), spec: Some(below), status: None };
    let input = names::sum(&serde_json::to_vec(&pod).map_err(|error| Reject(format!("the pod: {error}")))?);
    let applied = Applied::of(&pod).written();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(names::APPLIED.to_owned(), applied);
    annotations.insert(names::INPUT.to_owned(), input.clone());
    Ok(Translated { pod, input })
}

/// Refuses what cannot be had below.
fn refuse(spec: &PodSpec, policy: &Policy) -> Result<(), Reject> {
    if spec.containers.is_empty() {
        return Err(Reject("spec.containers: there is none".to_owned()));
    }
    if let Some(claim) = spec.resource_claims.iter().flatten().next() {
        return Err(Reject(format!(
            "spec.resourceClaims: {}: devices of the upper cluster cannot be claimed in another one: take the claims out, or \
             keep the pod off this node",
            claim.name
        )));
    }
    if policy.host_access { Ok(()) } else { host::refuse(&host::taken(spec)) }
}
