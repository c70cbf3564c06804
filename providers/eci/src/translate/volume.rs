//! Volumes and their mounts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Container, EmptyDirVolumeSource, FlexVolumeSource, NFSVolumeSource,
    PersistentVolumeSpec, PodSpec, Volume,
};
use vk_container_group::{
    backend::ResolvedPod,
    plan::{
        Diagnostics,
        files::{self, GroupFile, VolumeFiles},
    },
};
use vk_provider::resolve::{Claim, ContainerInputs, Origin};

use super::size::FILE_LIMITS;
use crate::api::{Parameters, flatten};

/// The vendor's drivers: disks, NAS, and object storage.
const DISK_DRIVER: &str = "diskplugin.csi.alibabacloud.com";
const NAS_DRIVER: &str = "nasplugin.csi.alibabacloud.com";
const OSS_DRIVER: &str = "ossplugin.csi.alibabacloud.com";

/// The volumes with files that a pod mounts.
pub(crate) fn file_volumes(pod: &ResolvedPod, diagnostics: &mut Diagnostics) -> Vec<VolumeFiles> {
    files::volumes(pod, &FILE_LIMITS, diagnostics)
}

/// Writes the volumes of a pod.
pub(super) fn write(pod: &ResolvedPod, spec: &PodSpec, out: &mut Parameters, diagnostics: &mut Diagnostics) {
    let with_files = file_volumes(pod, diagnostics);
    let mut at = 0;
    for volume in spec.volumes.iter().flatten() {
        let prefix = flatten("Volume", at, "");
        let files = with_files.iter().find(|one| one.volume == volume.name);
        let is_written = match files {
            Some(files) => {
                write_files(files, &prefix, out);
                true
            }
            // A file volume that nobody mounts has nothing to write, and no other volume is missing here.
            None => write_other(pod, volume, &prefix, out, diagnostics),
        };
        if is_written {
            out.set(format!("{prefix}.Name"), &volume.name);
            at += 1;
        }
    }
}

/// Writes the files that replace those of a running group.
pub(super) fn write_update(pod: &ResolvedPod, out: &mut Parameters) {
    // What is wrong with them was said when the whole pod was translated.
    let volumes = file_volumes(pod, &mut Diagnostics::default());
    for (at, volume) in volumes.iter().enumerate() {
        let prefix = flatten("Volume", at, "");
        write_contents(volume, &prefix, out);
        out.set(format!("{prefix}.Name"), &volume.volume);
    }
}

fn write_files(volume: &VolumeFiles, prefix: &str, out: &mut Parameters) {
    write_contents(volume, prefix, out);
    for (at, file) in volume.files.iter().enumerate() {
        let item = flatten(&format!("{prefix}.ConfigFileVolume.ConfigFileToPath"), at, "");
        out.set(format!("{item}.Mode"), readable(file).octal_mode());
    }
}

/// Writes everything but the modes, which an update does not have.
fn write_contents(volume: &VolumeFiles, prefix: &str, out: &mut Parameters) {
    out.set(format!("{prefix}.Type"), "ConfigFileVolume");
    for (at, file) in volume.files.iter().enumerate() {
        let item = flatten(&format!("{prefix}.ConfigFileVolume.ConfigFileToPath"), at, "");
        out.set(format!("{item}.Path"), &file.path);
        out.set_secret(format!("{item}.Content"), file.base64());
    }
}

/// Files belong to root. One that must belong to another user gets the owner's rights for all, or that user could not read it.
fn readable(file: &GroupFile) -> GroupFile {
    let owner = (file.mode >> 6) & 7;
    let mode =
        if file.owner.is_some_and(|owner| owner != 0) { file.mode | owner | owner << 3 } else { file.mode };
    GroupFile { mode, ..file.clone() }
}

/// Writes a volume without files. Returns whether there is one.
fn write_other(
    pod: &ResolvedPod,
    volume: &Volume,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) -> bool {
    if let Some(source) = &volume.empty_dir {
        empty_dir(source, prefix, out);
    } else if let Some(source) = &volume.nfs {
        nfs(source, prefix, out);
    } else if let Some(source) = &volume.flex_volume {
        flex(source, prefix, out);
    } else if let Some(source) = &volume.persistent_volume_claim {
        let field = format!("spec.volumes[{}].persistentVolumeClaim", volume.name);
        let read_only = source.read_only == Some(true);
        match pod.claims.get(&volume.name) {
            Some(claim) => {
                if let Err(why) = claimed(claim, read_only, prefix, out) {
                    diagnostics.refuse(field, why);
                }
            }
            // Without a cluster it is not known what is behind a claim.
            None => return false,
        }
    } else {
        // An unmounted volume with files, or one that the field policy has refused.
        return false;
    }
    true
}

fn empty_dir(source: &EmptyDirVolumeSource, prefix: &str, out: &mut Parameters) {
    out.set(format!("{prefix}.Type"), "EmptyDirVolume");
    let medium = source.medium.as_ref().filter(|medium| !medium.is_empty());
    out.set_some(format!("{prefix}.EmptyDirVolume.Medium"), medium);
    out.set_some(
        format!("{prefix}.EmptyDirVolume.SizeLimit"),
        source.size_limit.as_ref().map(|limit| &limit.0),
    );
}

fn nfs(source: &NFSVolumeSource, prefix: &str, out: &mut Parameters) {
    out.set(format!("{prefix}.Type"), "NFSVolume");
    out.set(format!("{prefix}.NFSVolume.Server"), &source.server);
    out.set(format!("{prefix}.NFSVolume.Path"), &source.path);
    out.set(format!("{prefix}.NFSVolume.ReadOnly"), source.read_only == Some(true));
}

fn flex(source: &FlexVolumeSource, prefix: &str, out: &mut Parameters) {
    let options = source.options.clone().unwrap_or_default();
    write_flex(&source.driver, source.fs_type.as_deref(), &options, prefix, out);
}

fn write_flex(
    driver: &str,
    fs_type: Option<&str>,
    options: &BTreeMap<String, String>,
    prefix: &str,
    out: &mut Parameters,
) {
    out.set(format!("{prefix}.Type"), "FlexVolume");
    out.set(format!("{prefix}.FlexVolume.Driver"), driver);
    out.set_some(format!("{prefix}.FlexVolume.FsType"), fs_type);
    if !options.is_empty() {
        // Serializing strings cannot fail. Options may hold access keys.
        let options = serde_json::to_string(options).unwrap_or_default();
        out.set_secret(format!("{prefix}.FlexVolume.Options"), options);
    }
}

/// The volume behind a claim: a disk, NFS, or a driver of the vendor.
fn claimed(claim: &Claim, read_only: bool, prefix: &str, out: &mut Parameters) -> Result<(), String> {
    let nothing = PersistentVolumeSpec::default();
    let spec = claim.volume.spec.as_ref().unwrap_or(&nothing);
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err("ECI mounts file systems only: claim a volume with volumeMode Filesystem".to_owned());
    }
    if let Some(source) = &spec.nfs {
        let read_only = read_only || source.read_only == Some(true);
        nfs(&NFSVolumeSource { read_only: Some(read_only), ..source.clone() }, prefix, out);
    } else if let Some(source) = &spec.flex_volume {
        let options = source.options.clone().unwrap_or_default();
        write_flex(&source.driver, source.fs_type.as_deref(), &options, prefix, out);
    } else if let Some(source) = &spec.csi {
        csi(source, read_only, prefix, out)?;
    } else {
        return Err(
            "the volume behind it is neither a disk, nor NAS, nor NFS: ECI cannot mount it".to_owned()
        );
    }
    Ok(())
}

fn csi(
    source: &CSIPersistentVolumeSource,
    read_only: bool,
    prefix: &str,
    out: &mut Parameters,
) -> Result<(), String> {
    let attributes = source.volume_attributes.clone().unwrap_or_default();
    match source.driver.as_str() {
        DISK_DRIVER => {
            out.set(format!("{prefix}.Type"), "DiskVolume");
            out.set(format!("{prefix}.DiskVolume.DiskId"), &source.volume_handle);
            out.set_some(format!("{prefix}.DiskVolume.FsType"), source.fs_type.as_ref());
        }
        NAS_DRIVER => {
            let server = attributes.get("server").ok_or("the NAS volume behind it names no server")?;
            let (server, path) = match server.split_once(':') {
                Some((server, path)) => (server, path),
                None => (server.as_str(), attributes.get("path").map_or("/", String::as_str)),
            };
            let volume = NFSVolumeSource {
                server: server.to_owned(),
                path: path.to_owned(),
                read_only: Some(read_only || source.read_only == Some(true)),
            };
            nfs(&volume, prefix, out);
        }
        OSS_DRIVER => write_flex("alicloud/oss", None, &attributes, prefix, out),
        other => return Err(format!("ECI cannot mount volumes of the driver {other}")),
    }
    Ok(())
}

/// Writes the mounts of a container.
pub(super) fn write_mounts(
    container: &Container,
    inputs: &ContainerInputs,
    path: &str,
    prefix: &str,
    out: &mut Parameters,
    diagnostics: &mut Diagnostics,
) {
    for (at, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let item = flatten(&format!("{prefix}.VolumeMount"), at, "");
        out.set(format!("{item}.Name"), &mount.name);
        out.set(format!("{item}.MountPath"), &mount.mount_path);
        if mount.read_only == Some(true) {
            out.set(format!("{item}.ReadOnly"), true);
        }
        out.set_some(format!("{item}.MountPropagation"), mount.mount_propagation.as_ref());
        let field = format!("{path}.volumeMounts[{}].subPathExpr", mount.mount_path);
        let sub_path = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
            Some(expression) => match expand(expression, inputs) {
                Ok(text) => Some(text),
                Err(why) => {
                    diagnostics.refuse(field, why);
                    None
                }
            },
            None => mount.sub_path.clone().filter(|text| !text.is_empty()),
        };
        out.set_some(format!("{item}.SubPath"), sub_path);
    }
}

/// Expands `$(NAME)`. As with a kubelet, every variable must exist.
fn expand(expression: &str, inputs: &ContainerInputs) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = expression;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            text.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            let variable = inputs.env.iter().rev().find(|variable| variable.name == name);
            let variable = variable.ok_or_else(|| format!("there is no variable {name}"))?;
            if variable.deferred.is_some() || variable.origin == Origin::Secret {
                return Err(format!("{name} is a secret, or not known before the group exists: use another"));
            }
            text.push_str(&variable.value);
            rest = after;
        } else {
            text.push('$');
        }
    }
    text.push_str(rest);
    if text.starts_with('/') || text.split('/').any(|part| part == "..") {
        return Err("it is not a path within the volume".to_owned());
    }
    Ok(text)
}
