//! Paths of the host: `hostPath` and `local` volumes. Blocks.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{HostPathVolumeSource, LocalVolumeSource};
use vk_provider::{Error, Result};

use super::pod_dirs;
use crate::text::io_error;

/// Checks the type of a host path, and creates it if its type requires that. The errors are a kubelet's.
pub(super) fn check(source: &HostPathVolumeSource) -> Result<PathBuf> {
    let path = Path::new(&source.path);
    if has_backsteps(&source.path) {
        return Err(Error::invalid(format!("invalid HostPath `{}`: must not contain '..'", source.path)));
    }
    let kind = fs::metadata(path).ok().map(|metadata| metadata.file_type());
    let is = |what: fn(&fs::FileType) -> bool| kind.as_ref().is_some_and(what);
    let (fits, wanted) = match source.type_.as_deref().unwrap_or_default() {
        "" => return Ok(path.to_owned()),
        "DirectoryOrCreate" if kind.is_none() => {
            let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
            return made.map(|()| path.to_owned()).map_err(|error| create_failed("mkdir", path, &error));
        }
        "FileOrCreate" if kind.is_none() => {
            let made = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            return made.map(|_| path.to_owned()).map_err(|error| create_failed("open", path, &error));
        }
        "Directory" | "DirectoryOrCreate" => (is(fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(fs::FileType::is_file), "file"),
        "Socket" => (is(fs::FileType::is_socket), "socket file"),
        "CharDevice" => (is(fs::FileType::is_char_device), "character device"),
        "BlockDevice" => (is(fs::FileType::is_block_device), "block device"),
        other => return Err(Error::invalid(format!("{other} is an invalid volume type"))),
    };
    if fits {
        return Ok(path.to_owned());
    }
    Err(Error::internal(format!("hostPath type check failed: {} is not a {wanted}", source.path)))
}

/// A `local` volume.
#[derive(Clone, Debug)]
pub(super) struct LocalVolume {
    pub(super) source: LocalVolumeSource,
    /// The name of the PersistentVolume.
    pub(super) name: String,
    /// The marker file of a completed setup.
    pub(super) marker: PathBuf,
    pub(super) read_only: bool,
    /// The pod's `fsGroup`.
    pub(super) group: Option<u32>,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub(super) only_on_mismatch: bool,
}

impl LocalVolume {
    /// Checks that it exists, and changes its group to the pod's once. Containers mount the path itself.
    pub(super) fn prepare(&self) -> Result<PathBuf> {
        let path = Path::new(&self.source.path);
        if self.source.path.is_empty() {
            return Err(Error::invalid(format!("LocalVolume volume {:?} path is empty", self.name)));
        }
        if has_backsteps(&self.source.path) {
            return Err(Error::invalid(format!("invalid path: {} must not contain '..'", self.source.path)));
        }
        let found = fs::metadata(path);
        let found = found.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::internal(format!("path {:?} does not exist", self.source.path)),
            _ => pod_dirs::failed("stat", path, &error),
        })?;
        if !found.is_dir() {
            return Err(Error::unsupported(format!(
                "local volume {:?} at {} is not a directory, and this node does not format devices",
                self.name, self.source.path
            )));
        }
        if let Some(group) = self.group
            && !self.read_only
            && !self.marker.exists()
        {
            if !(self.only_on_mismatch && vk_files::tree::has_fs_group(path, group, true)) {
                let real = path.canonicalize().map_err(|error| pod_dirs::failed("find", path, &error))?;
                let refused = vk_files::tree::set_fs_group(&real, group, true).map_err(|error| {
                    Error::internal("change the group of a volume to the pod's fsGroup").caused_by(error)
                })?;
                if refused > 0 {
                    tracing::warn!(path = %real.display(), group, refused, "cannot change the group of all files of a volume to the pod's fsGroup");
                }
            }
            pod_dirs::write_marker(&self.marker, "")?;
        }
        Ok(path.to_owned())
    }
}

/// Whether a path contains `..`.
pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

fn create_failed(operation: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format!("{operation} {}: {}", path.display(), io_error(error)))
}

#[cfg(test)]
mod tests;
