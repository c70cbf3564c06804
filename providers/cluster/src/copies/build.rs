//! Builds the desired copy of an upper object, and extracts the observed state of a lower object.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::Value;

use super::{
    diff::{self, CopyKey, DesiredCopy, ObservedCopy, UpperRef},
    kind::{CopiedObject, CopyContext},
};
use crate::names::{self, OwnerId};

#[cfg(test)]
mod tests;

/// This annotation describes the upper object, not the copy.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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
    let mut labels = filter_keys(meta.labels.as_ref(), |key| !key.starts_with(names::PREFIX));
    let mut annotations = filter_keys(meta.annotations.as_ref(), |key| {
        !key.starts_with(names::PREFIX) && key != LAST_APPLIED && K::keeps_annotation(key)
    });
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

/// Builds a service account without any content.
pub(super) fn build_service_account(source: &UpperRef, key: &CopyKey, owner: &OwnerId) -> DesiredCopy {
    let mut upper = ServiceAccount::default();
    upper.metadata.namespace = Some(source.namespace.clone());
    upper.metadata.name = Some(source.name.clone());
    let context = CopyContext { storage_classes: &BTreeMap::new(), has_volume: false };
    build(&upper, key, owner, context).expect("invariant: a bare account has no skip annotation")
}

/// Extracts the observed state of a lower object.
pub fn observe<K: CopiedObject>(lower: &K, owner: &OwnerId) -> ObservedCopy {
    let meta = lower.metadata();
    let source = || {
        let namespace = names::annotation(meta, names::ORIGIN_NAMESPACE)?.to_owned();
        Some(UpperRef { namespace, name: names::annotation(meta, names::ORIGIN_NAME)?.to_owned() })
    };
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
