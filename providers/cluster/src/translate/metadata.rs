//! Labels and annotations of the lower pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{PodRewriter, TranslationPolicy};
use crate::names::{self, OwnerId};

/// This annotation describes the upper object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The metadata of the lower pod. Owners, finalizers and the like only belong to the upper pod.
pub(super) fn lower_metadata(
    rewriter: &PodRewriter<'_>,
    owner: &OwnerId,
    policy: &TranslationPolicy,
) -> ObjectMeta {
    let mut labels = filter_keys(rewriter.meta.labels.as_ref(), |key| keeps_label(key, policy));
    labels.extend(
        [
            (names::ORIGIN, owner.origin.clone()),
            (names::NODE, owner.node_label()),
            (names::ORIGIN_UID, rewriter.uid.to_owned()),
            (names::VIRTUAL_POD, "true".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let mut annotations =
        filter_keys(rewriter.meta.annotations.as_ref(), |key| keeps_annotation(key, policy));
    annotations.extend(
        [(names::ORIGIN_NAMESPACE, rewriter.namespace), (names::ORIGIN_NAME, rewriter.name)]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    ObjectMeta {
        name: Some(rewriter.name.to_owned()),
        namespace: Some(rewriter.lower_namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

/// Whether the lower pod keeps a label of the upper pod. Users cannot set the labels that identify the owner.
pub(super) fn keeps_label(key: &str, policy: &TranslationPolicy) -> bool {
    !is_ours(key) && key != names::VIRTUAL_POD && !policy.ignored_labels.iter().any(|ignored| ignored == key)
}

/// Whether the lower pod keeps an annotation of the upper pod.
pub(super) fn keeps_annotation(key: &str, policy: &TranslationPolicy) -> bool {
    !is_ours(key)
        && key != names::CLUSTER_SELECTOR
        && key != LAST_APPLIED
        && !policy.ignored_annotations.iter().any(|ignored| ignored == key)
}

/// Whether a key is reserved for us.
pub(super) fn is_ours(key: &str) -> bool {
    key.starts_with(names::PREFIX)
}

fn filter_keys(
    all: Option<&BTreeMap<String, String>>,
    keeps: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let all = all.into_iter().flatten().filter(|(key, _)| keeps(key));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}
