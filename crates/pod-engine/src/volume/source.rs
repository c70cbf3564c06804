//! Sources of volumes. Pure.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{
        EmptyDirVolumeSource, HostPathVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec,
        Volume,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;
use vk_provider::{Error, Result};

use crate::containers::pod_containers;

/// The source of a volume.
#[derive(Clone, Debug)]
pub(super) enum VolumeSource {
    /// An empty directory.
    EmptyDir(EmptyDirVolumeSource),
    /// A path of the host.
    Host(HostPathVolumeSource),
    /// Files from the resolver.
    Files {
        /// The directory for volumes of this kind.
        kind: &'static str,
        /// Whether they are kept in memory: secrets are not written to disk.
        memory: bool,
    },
    /// A PersistentVolumeClaim.
    Claim {
        /// Its name.
        name: String,
        /// Whether it is read-only.
        read_only: bool,
    },
    /// The files of an image.
    Image,
}

/// An image volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageVolume {
    /// The volume's name.
    pub volume: String,
    /// The image name in the spec.
    pub reference: String,
    /// Its pull policy; `None` depends on the tag.
    pub pull_policy: Option<String>,
}

/// The image volumes of a pod that a container mounts.
pub fn images(pod: &Pod) -> Vec<ImageVolume> {
    mounted(pod)
        .filter_map(|volume| {
            let image = volume.image.as_ref()?;
            Some(ImageVolume {
                volume: volume.name.clone(),
                reference: image.reference.clone().unwrap_or_default(),
                pull_policy: image.pull_policy.clone(),
            })
        })
        .collect()
}

/// The volumes that a container mounts, in the order of the spec. As in a kubelet, others are not set up.
pub(super) fn mounted(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let mut names = BTreeSet::new();
    for container in pod_containers(pod) {
        names.extend(container.spec.volume_mounts.iter().flatten().map(|mount| mount.name.clone()));
        names.extend(container.spec.volume_devices.iter().flatten().map(|device| device.name.clone()));
    }
    volumes(pod.spec.as_ref()).filter(move |volume| names.contains(&volume.name))
}

fn volumes(spec: Option<&PodSpec>) -> impl Iterator<Item = &Volume> {
    spec.into_iter().flat_map(|spec| spec.volumes.iter().flatten())
}

impl VolumeSource {
    /// The source of a volume; an unsupported kind is an error that names it.
    pub(super) fn of(volume: &Volume, pod: &Pod) -> Result<Self> {
        if let Some(source) = &volume.empty_dir {
            return Ok(Self::EmptyDir(source.clone()));
        }
        if let Some(source) = &volume.host_path {
            return Ok(Self::Host(source.clone()));
        }
        if volume.config_map.is_some() {
            return Ok(Self::Files { kind: "kubernetes.io~configmap", memory: false });
        }
        if volume.secret.is_some() {
            return Ok(Self::Files { kind: "kubernetes.io~secret", memory: true });
        }
        if volume.projected.is_some() {
            return Ok(Self::Files { kind: "kubernetes.io~projected", memory: true });
        }
        if volume.downward_api.is_some() {
            return Ok(Self::Files { kind: "kubernetes.io~downward-api", memory: true });
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            let read_only = claim.read_only.unwrap_or_default();
            return Ok(Self::Claim { name: claim.claim_name.clone(), read_only });
        }
        if volume.ephemeral.is_some() {
            // The claim that the ephemeral volume controller creates.
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            return Ok(Self::Claim { name: format!("{pod}-{}", volume.name), read_only: false });
        }
        if volume.image.is_some() {
            return Ok(Self::Image);
        }
        let kind = other_key(volume, &["name"]).map_or_else(
            || "of a kind that this version does not know".to_owned(),
            |kind| format!("of kind {kind}"),
        );
        Err(Error::unsupported(format!(
            "volume {:?} is {kind}, which this node does not support; it supports configMap, downwardAPI, emptyDir, ephemeral, hostPath, \
             image, persistentVolumeClaim (of hostPath and local volumes), projected and secret",
            volume.name
        )))
    }
}

/// The error if a container uses a volume as a block device, which is not supported.
pub(super) fn block_device(pod: &Pod, volume: &str) -> Option<Error> {
    let container = pod_containers(pod).find(|container| {
        container.spec.volume_devices.iter().flatten().any(|device| device.name == volume)
    })?;
    Some(Error::unsupported(format!(
        "volume {volume:?} is a block device of container {:?} (volumeDevices), which this node does not support; mount it as a file system \
         (volumeMounts)",
        container.spec.name
    )))
}

/// Checks that a claim was created for this pod and does not only have the same name.
pub(super) fn check_owner(pod: &Pod, claim: &PersistentVolumeClaim) -> Result<()> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    if controllers.any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
        return Ok(());
    }
    let name = |meta: &ObjectMeta| {
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
    };
    Err(Error::internal(format!(
        "PVC {} was not created for pod {} (pod is not owner)",
        name(&claim.metadata),
        name(&pod.metadata)
    )))
}

/// The error for an unsupported PersistentVolume.
pub(super) fn unsupported(volume: &PersistentVolume) -> Error {
    const OTHERS: [&str; 10] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
        "name",
    ];
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let kind = volume.spec.as_ref().and_then(|spec| other_key(spec, &OTHERS));
    let kind = kind.unwrap_or_else(|| "unknown".to_owned());
    Error::unsupported(format!(
        "persistent volume {name:?} is of kind {kind}, which this node does not support; it supports hostPath and local"
    ))
}

/// The first field that is set and not in this list: the kind of the volume.
fn other_key(value: &impl Serialize, others: &[&str]) -> Option<String> {
    let value = serde_json::to_value(value).ok()?;
    value.as_object()?.keys().find(|key| !others.contains(&key.as_str())).cloned()
}

#[cfg(test)]
mod tests;
