//! Labels and annotations of runtime objects, by which they are found, and stopped when the pod is gone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use vk_provider::PodRef;

use crate::{
    Settings,
    snapshot::{annotation, label},
};

pub(super) fn of_sandbox(pod: &Pod, reference: &PodRef, settings: &Settings) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    // After the pod's own labels, so that a pod cannot claim to be another one or on another node.
    labels.extend(owner(reference, settings));
    labels
}

pub(super) fn of_container(
    reference: &PodRef,
    container: &Container,
    settings: &Settings,
) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<_, _> = owner(reference, settings).into();
    labels.insert(label::CONTAINER_NAME.to_owned(), container.name.clone());
    labels
}

fn owner(reference: &PodRef, settings: &Settings) -> [(String, String); 4] {
    [
        (label::POD_NAME.to_owned(), reference.name.to_string()),
        (label::POD_NAMESPACE.to_owned(), reference.namespace.to_string()),
        (label::POD_UID.to_owned(), reference.uid.to_string()),
        (label::NODE.to_owned(), settings.node.clone()),
    ]
}

pub(super) fn annotations(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    hash: u64,
) -> BTreeMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut annotations = BTreeMap::from([
        (annotation::HASH, format!("{hash:x}")),
        (annotation::RESTART_COUNT, attempt.to_string()),
        (annotation::TERMINATION_PATH, text(&container.termination_message_path)),
        (annotation::TERMINATION_POLICY, text(&container.termination_message_policy)),
    ]);
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        annotations.insert(annotation::DELETION_GRACE, grace.to_string());
    }
    if let Some(grace) = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds) {
        annotations.insert(annotation::TERMINATION_GRACE, grace.to_string());
    }
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    if let Some(Ok(hook)) = hook.map(serde_json::to_string) {
        annotations.insert(annotation::PRE_STOP, hook);
    }
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    if let Some(Ok(ports)) = ports.map(serde_json::to_string) {
        annotations.insert(annotation::PORTS, ports);
    }
    annotations.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
