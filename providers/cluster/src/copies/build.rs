//! Builds the desired copy of an upper object, and extracts the observed state of a lower object.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::Value;

use super::{
    diff::{self, CopyKey, DesiredCopy, ObservedCopy, UpperRef},
    kind::{CopiedObject, CopyContext, KeptMetadata, Kind},
};
use crate::names::{self, OwnerId};

#[cfg(test)]
mod tests;

/// Builds the desired copy of an upper object; `None` if it must not be copied.
pub fn build<K: CopiedObject>(
    upper: &K,
    key: &CopyKey,
    owner: &OwnerId,
    context: CopyContext<'_>,
) -> Option<DesiredCopy> {
    let meta = upper.metadata();
    if names::annotation(meta, names::SKIP) == Some("true") {
        return None;
    }
    let kept = context.metadata;
    let mut labels = filter_keys(meta.labels.as_ref(), |key| kept.labels.contains(key));
    let mut annotations = filter_keys(meta.annotations.as_ref(), |key| kept.annotations.contains(key));
    let applied_keys = diff::applied_keys(&labels, &annotations);
    labels.insert(names::ORIGIN.to_owned(), owner.origin.clone());
    let source = |text: &Option<String>| text.clone().unwrap_or_default();
    annotations.extend(
        [
            (names::ORIGIN_NAMESPACE, source(&meta.namespace)),
            (names::ORIGIN_NAME, source(&meta.name)),
            (names::APPLIED, applied_keys),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    if !K::COPY_KIND.is_removed_with_pods() {
        annotations.insert(names::ORIGIN_UID.to_owned(), source(&meta.uid));
    }
    let mut lower = upper.to_copy(context);
    *lower.metadata_mut() = ObjectMeta {
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        labels: Some(labels.clone()),
        annotations: Some(annotations.clone()),
        ..ObjectMeta::default()
    };
    let body = serde_json::to_string(&lower).expect("invariant: an object can be written as JSON");
    Some(DesiredCopy {
        body,
        labels,
        annotations,
        content: sum(&lower.content()),
        fixed: lower.immutable_part(),
    })
}

/// Builds an object without any content, which has a name that an object of somebody else must not have; `None` for claims, which are
/// never empty.
pub(super) fn build_empty(source: &UpperRef, key: &CopyKey, owner: &OwnerId) -> Option<DesiredCopy> {
    fn empty<K: CopiedObject>(source: &UpperRef, key: &CopyKey, owner: &OwnerId) -> Option<DesiredCopy> {
        let mut upper = K::default();
        upper.metadata_mut().namespace = Some(source.namespace.clone());
        upper.metadata_mut().name = Some(source.name.clone());
        let context = CopyContext {
            storage_classes: &BTreeMap::new(),
            has_volume: false,
            has_source: false,
            metadata: &KeptMetadata::default(),
        };
        build(&upper, key, owner, context)
    }
    match key.kind {
        Kind::ConfigMap => empty::<ConfigMap>(source, key, owner),
        Kind::Secret => empty::<Secret>(source, key, owner),
        Kind::ServiceAccount => empty::<ServiceAccount>(source, key, owner),
        Kind::Claim => None,
    }
}

/// Extracts the observed state of a lower object.
pub fn observe<K: CopiedObject>(lower: &K, owner: &OwnerId) -> ObservedCopy {
    let meta = lower.metadata();
    let source = || {
        let namespace = names::annotation(meta, names::ORIGIN_NAMESPACE)?.to_owned();
        Some(UpperRef { namespace, name: names::annotation(meta, names::ORIGIN_NAME)?.to_owned() })
    };
    let owners = meta.owner_references.iter().flatten().filter(|one| one.kind == "ConfigMap");
    ObservedCopy {
        uid: meta.uid.clone().unwrap_or_default(),
        version: version(meta),
        source: owner.is_origin_of(meta).then(source).flatten(),
        labels: meta.labels.clone().unwrap_or_default(),
        annotations: meta.annotations.clone().unwrap_or_default(),
        content: sum(&lower.content()),
        fixed: lower.immutable_part(),
        immutable: lower.is_immutable(),
        deleting: meta.deletion_timestamp.is_some(),
        owners: owners.map(|one| one.uid.clone()).collect(),
    }
}

/// The resource version as a number.
pub(super) fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn sum(content: &Value) -> String {
    names::sha256_hex(content.to_string().as_bytes())
}

fn filter_keys(
    all: Option<&BTreeMap<String, String>>,
    keeps: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let all = all.into_iter().flatten().filter(|(key, _)| keeps(key));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}
