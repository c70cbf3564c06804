//! A pod of which only the runtime knows: left by an earlier process, and not asked for yet.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use vk_provider::PodRef;

use crate::snapshot::{Snapshot, annotation};

/// What can be said of the pod by the marks on its containers. Which of them are init containers nobody can tell.
pub(super) fn pod(reference: &PodRef, snapshot: &Snapshot) -> Pod {
    let names: BTreeSet<&str> = snapshot.containers.iter().map(|container| container.name.as_str()).collect();
    let containers = names.into_iter().filter_map(|name| {
        let newest = snapshot.newest(name)?;
        Some(Container {
            name: name.to_owned(),
            image: Some(newest.image.clone()),
            termination_message_path: newest.annotations.get(annotation::TERMINATION_PATH).cloned(),
            termination_message_policy: newest.annotations.get(annotation::TERMINATION_POLICY).cloned(),
            ..Container::default()
        })
    });
    let grace = |container: &crate::snapshot::Container| {
        container.annotations.get(annotation::TERMINATION_GRACE).and_then(|grace| grace.parse().ok())
    };
    let created = snapshot.sandboxes.iter().map(|sandbox| sandbox.created).min();
    Pod {
        metadata: ObjectMeta {
            namespace: Some(reference.namespace.to_string()),
            name: Some(reference.name.to_string()),
            uid: Some(reference.uid.to_string()),
            creation_timestamp: created.map(Time),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: containers.collect(),
            restart_policy: Some("Always".to_owned()),
            termination_grace_period_seconds: snapshot.containers.iter().find_map(grace),
            host_network: snapshot.sandboxes.first().map(|sandbox| sandbox.host_network),
            ..PodSpec::default()
        }),
        status: None,
    }
}
