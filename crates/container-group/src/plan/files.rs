//! The files of configMap, secret, downwardAPI and projected volumes, for clouds that take files when a group is created.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use k8s_openapi::api::core::v1::{Pod, Volume, VolumeMount};
use vk_provider::resolve::{File, Origin};

use super::Diagnostics;
use crate::backend::ResolvedPod;

/// Limits of the files of a group, in bytes of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// For each file.
    pub file: usize,
    /// For all files of the group.
    pub group: usize,
}

/// A volume with its files.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeFiles {
    /// The volume's name.
    pub volume: String,
    /// Its files, by path.
    pub files: Vec<GroupFile>,
    /// Where it is mounted; never empty.
    pub mounts: Vec<FileMount>,
}

/// A file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupFile {
    /// Its path in the volume: relative, normalised.
    pub path: String,
    /// Permission bits, such as `0o644`.
    pub mode: u32,
    /// The user that must own it; `None` for any.
    pub owner: Option<u32>,
    /// The content. May be secret, so `Debug` omits it.
    pub content: Bytes,
    /// Where the content comes from.
    pub origin: Origin,
}

/// A mount of a volume with files.
#[derive(Clone, Debug, PartialEq)]
pub struct FileMount {
    /// The container.
    pub container: String,
    /// Whether it is an init container.
    pub init: bool,
    /// The mount as the pod has it.
    pub mount: VolumeMount,
}

/// How much of the limits a pod's files use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileUsage {
    /// The number of volumes with files.
    pub volumes: usize,
    /// The number of files.
    pub files: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// The volumes with files that a container mounts, in the order of the pod. Files over the limits are refused, each with its volume,
/// its path and both sizes.
pub fn volumes(pod: &ResolvedPod, limits: &FileLimits, diagnostics: &mut Diagnostics) -> Vec<VolumeFiles> {
    let spec = pod.pod.spec.as_ref();
    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let found: Vec<_> = volumes.iter().filter_map(|volume| volume_files(pod, volume)).collect();
    check_sizes(&found, limits, diagnostics);
    found
}

/// How much these volumes use.
pub fn usage(volumes: &[VolumeFiles]) -> FileUsage {
    let files = || volumes.iter().flat_map(|volume| &volume.files);
    FileUsage {
        volumes: volumes.len(),
        files: files().count(),
        bytes: files().map(|file| file.content.len()).sum(),
    }
}

fn volume_files(pod: &ResolvedPod, volume: &Volume) -> Option<VolumeFiles> {
    let set = pod.files.get(&volume.name)?;
    let mounts = mounts(&pod.pod, &volume.name);
    let files = set.files.iter().map(|(path, file)| GroupFile::new(path, file)).collect();
    (!mounts.is_empty()).then(|| VolumeFiles { volume: volume.name.clone(), files, mounts })
}

fn mounts(pod: &Pod, volume: &str) -> Vec<FileMount> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten().map(|container| (container, true));
    let all = init.chain(spec.containers.iter().map(|container| (container, false)));
    all.flat_map(|(container, init)| {
        let of_volume = container.volume_mounts.iter().flatten().filter(|mount| mount.name == volume);
        of_volume.map(move |mount| FileMount {
            container: container.name.clone(),
            init,
            mount: mount.clone(),
        })
    })
    .collect()
}

fn check_sizes(volumes: &[VolumeFiles], limits: &FileLimits, diagnostics: &mut Diagnostics) {
    for VolumeFiles { volume, files, .. } in volumes {
        let too_large = files.iter().filter(|file| file.content.len() > limits.file);
        let texts: Vec<_> = too_large
            .map(|file| {
                let size = Bytesize(file.content.len());
                format!(
                    "file {} has {size}; a file of this cloud has at most {}",
                    file.path,
                    Bytesize(limits.file)
                )
            })
            .collect();
        if !texts.is_empty() {
            let advice = "put it into the image or on a network volume";
            diagnostics.refuse(format!("spec.volumes[{volume}]"), format!("{}: {advice}", texts.join("; ")));
        }
    }
    let total = usage(volumes).bytes;
    if total > limits.group {
        let mut shares: Vec<_> =
            volumes.iter().map(|one| (usage(std::slice::from_ref(one)).bytes, one.volume.as_str())).collect();
        shares.sort_unstable_by(|one, other| other.cmp(one));
        let shares: Vec<_> =
            shares.iter().map(|(bytes, volume)| format!("{volume} {}", Bytesize(*bytes))).collect();
        let (total, limit) = (Bytesize(total), Bytesize(limits.group));
        diagnostics.refuse(
            "spec.volumes",
            format!(
                "the files of the pod have {total} ({}); those of a group have at most {limit}: put them into the image or on a network volume",
                shares.join(", ")
            ),
        );
    }
}

// === impl GroupFile ===

impl GroupFile {
    fn new(path: &str, file: &File) -> Self {
        let File { content, mode, owner, origin } = file;
        Self { path: path.to_owned(), mode: *mode, owner: *owner, content: content.clone(), origin: *origin }
    }

    /// The content in base64 with padding.
    pub fn base64(&self) -> String {
        BASE64_STANDARD.encode(&self.content)
    }

    /// The mode as four octal digits, such as `0644`.
    pub fn octal_mode(&self) -> String {
        format!("{:04o}", self.mode & 0o7777)
    }
}

impl fmt::Debug for GroupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, mode, owner, content, origin } = self;
        write!(f, "GroupFile({path}, {} bytes, mode {mode:o}, owner {owner:?}, {origin:?})", content.len())
    }
}

// === impl Bytesize ===

/// A number of bytes for humans, exact where it decides.
#[derive(Clone, Copy)]
struct Bytesize(usize);

impl fmt::Display for Bytesize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        if bytes < 1024 || bytes % 1024 == 0 && bytes < 1 << 20 {
            return if bytes < 1024 { write!(f, "{bytes} bytes") } else { write!(f, "{} KB", bytes / 1024) };
        }
        let tenths = bytes.saturating_mul(10).div_ceil(1024);
        write!(f, "{}.{} KB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests;
