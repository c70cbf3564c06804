//! What of a lower pod is the upper one's and may change while it runs.
//!
//! Admission below may set labels, rewrite images and raise requests. What differs from the upper pod is therefore not what has
//! changed: that is what differs from what was written last, which the lower pod itself remembers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, ResourceRequirements, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

use super::metadata;
use crate::names;

/// Amounts by resource, by `requests` and `limits`.
pub(super) type Resources = BTreeMap<String, BTreeMap<String, String>>;

/// What was written last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LastApplied {
    /// Sums of values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<String, String>,
    /// Sums of values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
    /// By container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) images: BTreeMap<String, String>,
    /// By container; without a name for the pod as a whole.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) resources: BTreeMap<String, Resources>,
    /// Sums.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) tolerations: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) active_deadline_seconds: Option<i64>,
}

// === impl LastApplied ===

impl LastApplied {
    /// Of a pod that has been translated.
    pub(super) fn of(translated: &Pod) -> Self {
        let meta = &translated.metadata;
        let sums = |all: Option<&BTreeMap<String, String>>| {
            let users = all.into_iter().flatten().filter(|(key, _)| is_users(key));
            users.map(|(key, value)| (key.clone(), sum(value))).collect()
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
        applied.tolerations = spec.tolerations.iter().flatten().map(sum_of).collect();
        applied.active_deadline_seconds = spec.active_deadline_seconds;
        applied
    }

    /// From a lower pod. One that somebody has spoilt remembers nothing.
    pub(super) fn read(lower: &ObjectMeta) -> Self {
        let text = names::annotation(lower, names::APPLIED).unwrap_or_default();
        serde_json::from_str(text).unwrap_or_default()
    }

    /// For an annotation.
    pub(super) fn written(&self) -> String {
        serde_json::to_string(self).expect("invariant: maps of texts can be written")
    }

    fn add(&mut self, name: &str, resources: Option<&ResourceRequirements>) {
        let resources = resources_of(resources);
        if !resources.is_empty() {
            self.resources.insert(name.to_owned(), resources);
        }
    }
}

/// Whether a label or annotation of a translated pod is the user's, and not one of our own.
pub(super) fn is_users(key: &str) -> bool {
    !metadata::is_ours(key) && key != names::VIRTUAL_POD
}

/// The containers that a pod is made with.
pub(super) fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

/// The amounts that a container or a pod asks for.
pub(super) fn resources_of(resources: Option<&ResourceRequirements>) -> Resources {
    let Some(resources) = resources else { return Resources::new() };
    let both = [("requests", &resources.requests), ("limits", &resources.limits)];
    let amounts = both.into_iter().filter_map(|(name, list)| {
        let list = list.as_ref().filter(|list| !list.is_empty())?;
        let list = list.iter().map(|(name, amount)| (name.clone(), amount.0.clone())).collect();
        Some((name.to_owned(), list))
    });
    amounts.collect()
}

/// Enough of the sum of a text to tell it from its successor.
pub(super) fn sum(text: &str) -> String {
    let mut sum = names::sha256_hex(text.as_bytes());
    sum.truncate(12);
    sum
}

/// The same of a toleration.
pub(super) fn sum_of(toleration: &Toleration) -> String {
    sum(&serde_json::to_string(toleration).expect("invariant: a toleration can be written"))
}
