//! The fields of volumes and of their mounts.

use vk_container_group::plan::policy::{Literal, Row};

const OTHER_STORAGE: &str =
    "storage of another kind: use nfs, or a PersistentVolumeClaim for a disk or NAS of this cloud";

pub(super) const ROWS: [Row; 42] = [
    Row::refused("Volume.awsElasticBlockStore", OTHER_STORAGE),
    Row::refused("Volume.azureDisk", OTHER_STORAGE),
    Row::refused("Volume.azureFile", OTHER_STORAGE),
    Row::refused("Volume.cephfs", OTHER_STORAGE),
    Row::refused("Volume.cinder", OTHER_STORAGE),
    Row::native("Volume.configMap", "ConfigFileVolume"),
    Row::refused("Volume.csi", "ECI has no CSI drivers: use a PersistentVolumeClaim for a disk, or nfs"),
    Row::native("Volume.downwardAPI", "ConfigFileVolume"),
    Row::native("Volume.emptyDir", "EmptyDirVolume"),
    Row::native("Volume.emptyDir.medium", "EmptyDirVolume.Medium"),
    Row::native("Volume.emptyDir.sizeLimit", "EmptyDirVolume.SizeLimit"),
    Row::refused(
        "Volume.ephemeral",
        "the claim would outlive its group: use a PersistentVolumeClaim or emptyDir",
    ),
    Row::refused("Volume.fc", OTHER_STORAGE),
    Row::native("Volume.flexVolume", "FlexVolume"),
    Row::refused(
        "Volume.flexVolume.secretRef",
        "ECI reads no Secrets: put what the driver needs into options",
    ),
    Row::refused("Volume.flocker", OTHER_STORAGE),
    Row::refused("Volume.gcePersistentDisk", OTHER_STORAGE),
    Row::refused("Volume.gitRepo", OTHER_STORAGE),
    Row::refused("Volume.glusterfs", OTHER_STORAGE),
    Row::refused("Volume.hostPath", "a group has no host: use emptyDir, configMap or nfs"),
    Row::refused("Volume.image", "ECI mounts no images: copy the files in an init container"),
    Row::refused("Volume.iscsi", OTHER_STORAGE),
    Row::native("Volume.name", "Volume.N.Name"),
    Row::native("Volume.nfs", "NFSVolume"),
    Row::native("Volume.persistentVolumeClaim", "DiskVolume, NFSVolume or FlexVolume"),
    Row::refused("Volume.photonPersistentDisk", OTHER_STORAGE),
    Row::refused("Volume.portworxVolume", OTHER_STORAGE),
    Row::native("Volume.projected", "ConfigFileVolume"),
    Row::refused("Volume.quobyte", OTHER_STORAGE),
    Row::refused("Volume.rbd", OTHER_STORAGE),
    Row::refused("Volume.scaleIO", OTHER_STORAGE),
    Row::native("Volume.secret", "ConfigFileVolume"),
    Row::refused("Volume.storageos", OTHER_STORAGE),
    Row::refused("Volume.vsphereVolume", OTHER_STORAGE),
    Row::ignored("VolumeMount.bindMountOptions", "ECI mounts with its own options"),
    Row::native("VolumeMount.mountPath", "VolumeMount.N.MountPath"),
    Row::native("VolumeMount.mountPropagation", "VolumeMount.N.MountPropagation"),
    Row::native("VolumeMount.name", "VolumeMount.N.Name"),
    Row::native("VolumeMount.readOnly", "VolumeMount.N.ReadOnly").unless(&[Literal::Bool(false)]),
    Row::refused("VolumeMount.recursiveReadOnly", "ECI cannot promise it: write IfPossible or Disabled")
        .unless(&[Literal::Text("Disabled"), Literal::Text("IfPossible")])
        .sample("\"Enabled\""),
    Row::native("VolumeMount.subPath", "VolumeMount.N.SubPath"),
    Row::emulated("VolumeMount.subPathExpr", "VolumeMount.N.SubPath, expanded"),
];
