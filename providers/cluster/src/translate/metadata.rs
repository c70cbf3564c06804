//! Labels and annotations of the lower pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{PodRewriter, Policy};
use crate::names::{self, Owner};

/// What `kubectl apply` remembers is of the upper object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The metadata of the lower pod. Owners, finalizers and the rest are of the upper one alone.
pub(super) fn below(rewriter: &PodRewriter<'_>, owner: &Owner, policy: &Policy) -> ObjectMeta {
    let mut labels = kept(rewriter.meta.labels.as_ref(), |key| keeps_label(key, policy));
    labels.extend(
        [
            (names::ORIGIN, owner.origin.clone()),
            (names::NODE, owner.node_label()),
            (names::ORIGIN_UID, rewriter.uid.to_owned()),
            (names::VIRTUAL_POD, "true".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let mut annotations = kept(rewriter.meta.annotations.as_ref(), |key| keeps_annotation(key, policy));
    annotations.extend(
        [(names::ORIGIN_NAMESPACE, rewriter.namespace), (names::ORIGIN_NAME, rewriter.name)]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    ObjectMeta {
        name: Some(rewriter.name.to_owned()),
        namespace: Some(rewriter.below.clone()),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

/// Whether the lower pod has a label of the upper one. Nobody above writes what tells whose a lower object is.
pub(super) fn keeps_label(key: &str, policy: &Policy) -> bool {
    !is_ours(key) && key != names::VIRTUAL_POD && !policy.ignored_labels.iter().any(|ignored| ignored == key)
}

/// Whether the lower pod has an annotation of the upper one.
pub(super) fn keeps_annotation(key: &str, policy: &Policy) -> bool {
    !is_ours(key)
        && key != names::CLUSTER_SELECTOR
        && key != LAST_APPLIED
        && !policy.ignored_annotations.iter().any(|ignored| ignored == key)
}

/// Whether it is ours to write.
pub(super) fn is_ours(key: &str) -> bool {
    key.starts_with(names::PREFIX)
}

fn kept(all: Option<&BTreeMap<String, String>>, keeps: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let all = all.into_iter().flatten().filter(|(key, _)| keeps(key));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}
