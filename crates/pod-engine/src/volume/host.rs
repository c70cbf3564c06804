//! Paths of the machine: host paths, and local volumes. Blocks.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{HostPathVolumeSource, LocalVolumeSource};
use vk_provider::{Error, Result};

use super::place;

/// Looks whether a host path is what it is said to be, and makes it where that is wanted. The words are a kubelet's.
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
            return made.map(|()| path.to_owned()).map_err(|error| unmade("mkdir", path, &error));
        }
        "FileOrCreate" if kind.is_none() => {
            let made = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            return made.map(|_| path.to_owned()).map_err(|error| unmade("open", path, &error));
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

/// A local volume to be used.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) source: LocalVolumeSource,
    /// The name of the PersistentVolume.
    pub(super) name: String,
    /// What tells that it was given to the group.
    pub(super) mark: PathBuf,
    pub(super) read_only: bool,
    /// The pod's `fsGroup`.
    pub(super) group: Option<u32>,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub(super) only_on_mismatch: bool,
}

impl Local {
    /// Looks whether it is there, and gives it to the pod's group, once. Containers get the path itself.
    pub(super) fn make(&self) -> Result<PathBuf> {
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
            _ => place::failed("stat", path, &error),
        })?;
        if !found.is_dir() {
            return Err(Error::unsupported(format!(
                "local volume {:?} at {} is not a directory, and this node formats no devices",
                self.name, self.source.path
            )));
        }
        if let Some(group) = self.group
            && !self.read_only
            && !self.mark.exists()
        {
            if !(self.only_on_mismatch && vk_files::tree::has_fs_group(path, group, true)) {
                let real = path.canonicalize().map_err(|error| place::failed("find", path, &error))?;
                let refused = vk_files::tree::set_fs_group(&real, group, true).map_err(|error| {
                    Error::internal("give a volume to the pod's fsGroup").caused_by(error)
                })?;
                if refused > 0 {
                    tracing::warn!(path = %real.display(), group, refused, "not all of a volume could be given to the pod's fsGroup");
                }
            }
            place::put_mark(&self.mark, "")?;
        }
        Ok(path.to_owned())
    }
}

/// Whether a path goes up anywhere.
pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

fn unmade(operation: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format!("{operation} {}: {}", path.display(), vk_provider::go_text::io_error(error)))
}

#[cfg(test)]
mod tests;
