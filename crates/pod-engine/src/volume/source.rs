//! What a volume is made of. Pure.

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

use crate::parts::parts;

/// What a volume is made of.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// An empty directory.
    Empty(EmptyDirVolumeSource),
    /// Something of the machine.
    Host(HostPathVolumeSource),
    /// Files that the resolver gives.
    Files {
        /// The directory for volumes of this kind.
        kind: &'static str,
        /// Whether they are to be kept in memory: what is secret never touches a disk.
        memory: bool,
    },
    /// A PersistentVolumeClaim.
    Claim {
        /// Its name.
        name: String,
        /// Whether it cannot be written.
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
    /// The image, as the user wrote it.
    pub reference: String,
    /// When it is to be pulled; `None` leaves it to the tag.
    pub pull_policy: Option<String>,
}

/// The pod's image volumes that a container mounts.
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

/// The volumes that a container mounts, in the order of the pod. Like a kubelet, we make no others.
pub(super) fn mounted(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let mut names = BTreeSet::new();
    for part in parts(pod) {
        names.extend(part.container.volume_mounts.iter().flatten().map(|mount| mount.name.clone()));
        names.extend(part.container.volume_devices.iter().flatten().map(|device| device.name.clone()));
    }
    volumes(pod.spec.as_ref()).filter(move |volume| names.contains(&volume.name))
}

fn volumes(spec: Option<&PodSpec>) -> impl Iterator<Item = &Volume> {
    spec.into_iter().flat_map(|spec| spec.volumes.iter().flatten())
}

impl Source {
    /// What a volume of a pod is made of; a kind that we cannot make is an error that names it.
    pub(super) fn of(volume: &Volume, pod: &Pod) -> Result<Self> {
        if let Some(source) = &volume.empty_dir {
            return Ok(Self::Empty(source.clone()));
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
            // The claim that the cluster makes for it.
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
            "volume {:?} is {kind}, which this node cannot mount; it can mount configMap, downwardAPI, emptyDir, ephemeral, hostPath, \
             image, persistentVolumeClaim (of hostPath and local volumes), projected and secret",
            volume.name
        )))
    }
}

/// Containers that want a volume as a block device, which we cannot give.
pub(super) fn block_device(pod: &Pod, volume: &str) -> Option<Error> {
    let part = parts(pod)
        .find(|part| part.container.volume_devices.iter().flatten().any(|device| device.name == volume))?;
    Some(Error::unsupported(format!(
        "volume {volume:?} is a block device of container {:?} (volumeDevices), which this node cannot give; mount it as a file system \
         (volumeMounts)",
        part.container.name
    )))
}

/// Looks whether a claim was made for this pod, and is not another one that has the name by chance: that may hold anything.
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

/// Why a PersistentVolume cannot be mounted here.
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
        "persistent volume {name:?} is of kind {kind}, which this node cannot mount; it can mount hostPath and local"
    ))
}

/// The first field that is set and is none of these: the name of the kind, whichever the API has.
fn other_key(value: &impl Serialize, others: &[&str]) -> Option<String> {
    let value = serde_json::to_value(value).ok()?;
    value.as_object()?.keys().find(|key| !others.contains(&key.as_str())).cloned()
}

#[cfg(test)]
mod tests;
