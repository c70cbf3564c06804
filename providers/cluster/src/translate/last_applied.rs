//! The values that were last written from the upper pod, as far as they may change while the pod is running.
//!
//! Admission in the lower cluster may set labels, rewrite images and raise requests. So a difference to the upper pod does not mean that
//! the upper pod changed. Only a difference to the last written values does. They are stored in an annotation of the lower pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

use super::metadata;
use crate::names;

/// Amounts by resource, for `requests` and `limits`.
pub(super) type ResourceAmounts = BTreeMap<String, BTreeMap<String, String>>;

/// The values that were last written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LastApplied {
    /// Hashes of values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<String, String>,
    /// Hashes of values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
    /// By container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) images: BTreeMap<String, String>,
    /// By container; the empty name stands for the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) resources: BTreeMap<String, ResourceAmounts>,
    /// Hashes.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) tolerations: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) active_deadline_seconds: Option<i64>,
}

// === impl LastApplied ===

impl LastApplied {
    /// The values of a translated pod.
    pub(super) fn of(translated: &Pod) -> Self {
        let meta = &translated.metadata;
        let sums = |all: Option<&BTreeMap<String, String>>| {
            let users = all.into_iter().flatten().filter(|(key, _)| is_user_key(key));
            users.map(|(key, value)| (key.clone(), short_hash(value))).collect()
        };
        let mut applied = Self {
            labels: sums(meta.labels.as_ref()),
            annotations: sums(meta.annotations.as_ref()),
            ..Self::default()
        };
        let Some(spec) = &translated.spec else { return applied };
        for container in containers(spec) {
            if let Some(image) = &container.image {
                applied.images.insert(container.name.clone(), image.clone());
            }
            applied.add(&container.name, container.resources.as_ref());
        }
        applied.add("", spec.resources.as_ref());
        applied.tolerations = spec.tolerations.iter().flatten().map(toleration_hash).collect();
        applied.active_deadline_seconds = spec.active_deadline_seconds;
        applied
    }

    /// Reads the annotation of a lower pod. An invalid annotation counts as empty.
    pub(super) fn read(lower: &ObjectMeta) -> Self {
        let text = names::annotation(lower, names::APPLIED).unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The value of the annotation.
    pub(super) fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("invariant: maps of texts can be serialized")
    }

    fn add(&mut self, name: &str, resources: Option<&ResourceRequirements>) {
        let resources = resources_of(resources);
        if !resources.is_empty() {
            self.resources.insert(name.to_owned(), resources);
        }
    }
}

/// Whether a label or annotation of a translated pod comes from the user.
pub(super) fn is_user_key(key: &str) -> bool {
    !metadata::is_ours(key) && key != names::VIRTUAL_POD
}

/// The containers and init containers.
pub(super) fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

/// The requests and limits of a container or a pod.
pub(super) fn resources_of(resources: Option<&ResourceRequirements>) -> ResourceAmounts {
    let Some(resources) = resources else { return ResourceAmounts::new() };
    let both = [("requests", &resources.requests), ("limits", &resources.limits)];
    let amounts = both.into_iter().filter_map(|(name, list)| {
        let list = list.as_ref().filter(|list| !list.is_empty())?;
        let list = list.iter().map(|(name, amount)| (name.clone(), amount.0.clone())).collect();
        Some((name.to_owned(), list))
    });
    amounts.collect()
}

/// A short hash of a text.
pub(super) fn short_hash(text: &str) -> String {
    let mut short_hash = names::sha256_hex(text.as_bytes());
    short_hash.truncate(12);
    short_hash
}

/// A short hash of a toleration.
pub(super) fn toleration_hash(toleration: &Toleration) -> String {
    short_hash(&serde_json::to_string(toleration).expect("invariant: a toleration can be serialized"))
}
