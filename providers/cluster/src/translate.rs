//! The lower pod of an upper one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Toleration};
use serde::Deserialize;

use crate::names::{Namespaces, Owner};

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

/// Makes the lower pod of an upper one.
pub fn translate(
    _upper: &Pod,
    _owner: &Owner,
    _policy: &Policy,
    _facts: &Facts,
) -> Result<Translated, Reject> {
    Err(Reject("not written".to_owned()))
}
