//! Pods for cases.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, SecretVolumeSource, Volume},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use vk_provider::PodRef;

/// A pod with one container.
pub fn pod(name: &str, number: u32, created: jiff::Timestamp) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("shop".to_owned()),
            uid: Some(format!("00000000-0000-4000-8000-{number:012}")),
            creation_timestamp: Some(Time(created)),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "main".to_owned(),
                image: Some("image:1".to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// A pod with a volume from a Secret.
pub fn pod_with_secret(name: &str, number: u32, created: jiff::Timestamp) -> Pod {
    let mut pod = pod(name, number, created);
    let volume = Volume {
        name: "secret".to_owned(),
        secret: Some(SecretVolumeSource::default()),
        ..Volume::default()
    };
    if let Some(spec) = &mut pod.spec {
        spec.volumes = Some(vec![volume]);
    }
    pod
}

/// The identity of a pod of the suite.
pub fn reference(pod: &Pod) -> PodRef {
    let meta = &pod.metadata;
    let text = |field: &Option<String>| Arc::<str>::from(field.as_deref().unwrap_or_default());
    PodRef::new(text(&meta.namespace), text(&meta.name), text(&meta.uid))
}
