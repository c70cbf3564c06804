//! Sub path mounts. Blocks.
//!
//! Containers write into volumes, so any component of a path may become a symbolic link at any time, also right after a check. The path is
//! therefore opened once, without leaving the volume, and the opened directory is bind-mounted at a path that no container sees. The runtime
//! gets that path.

use std::{
    fs,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, fstat};
use vk_files::RootDir;
use vk_provider::{Error, Result};

use super::{mount_table, pod_dirs};

/// Why a sub path cannot be mounted.
#[derive(Debug)]
pub(super) enum SubPathError {
    /// It did not exist and could not be created.
    Create(Error),
    /// It could not be opened or mounted, or leads out of the volume.
    Prepare(Error),
}

/// Mounts a sub path of a volume at `target` and returns the mount point. Missing directories are created with the mode of the volume, as in a
/// kubelet.
pub(super) fn prepare(volume: &Path, sub_path: &str, target: &Path) -> Result<PathBuf, SubPathError> {
    let internal = |error: vk_files::Error| Error::internal("open a subPath").caused_by(error);
    // A host path may be a symbolic link of the administrator.
    let real = volume.canonicalize();
    let real = real.map_err(|error| SubPathError::Prepare(pod_dirs::failed("find", volume, &error)))?;
    let root = RootDir::open(&real).map_err(|error| SubPathError::Prepare(internal(error)))?;
    let handle = match root.handle(sub_path) {
        Ok(handle) => handle,
        // A dangling link counts as missing: a kubelet tries to create it.
        Err(error) if real.join(sub_path).exists() => return Err(SubPathError::Prepare(internal(error))),
        Err(_) => {
            let mode = fs::metadata(&real)
                .map_err(|error| SubPathError::Create(pod_dirs::failed("stat", &real, &error)))?;
            root.create_dirs(sub_path, mode.permissions().mode() & 0o7777)
                .map_err(|error| SubPathError::Create(internal(error)))?
        }
    };
    mount(&handle, target).map_err(SubPathError::Prepare)
}

fn mount(handle: &OwnedFd, target: &Path) -> Result<PathBuf> {
    let wanted = fstat(handle).map_err(|error| pod_dirs::failed("inspect", target, &error.into()))?;
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Error::internal(format!("{} has no parent directory for a subPath", target.display())));
    };
    pod_dirs::create(parent)?;
    // The mount table has no symbolic links.
    let target = parent.canonicalize().map_err(|error| pod_dirs::failed("find", parent, &error))?.join(name);
    let failed = |operation: &'static str| {
        let target = target.clone();
        move |error: std::io::Error| pod_dirs::failed(operation, &target, &error)
    };
    while mount_table::at(&target).map_err(failed("inspect"))?.is_some() {
        // From an earlier container or process.
        let found = fs::symlink_metadata(&target).map_err(failed("inspect"))?;
        if (found.dev(), found.ino()) == (wanted.st_dev, wanted.st_ino) {
            return Ok(target);
        }
        mount_table::unmount(&target).map_err(failed("unmount"))?;
    }
    // The type may have changed between file and directory.
    vk_files::tree::remove(&target)
        .map_err(|error| Error::internal("remove an old subPath mount point").caused_by(error))?;
    if FileType::from_raw_mode(wanted.st_mode) == FileType::Directory {
        pod_dirs::create(&target)?;
    } else {
        fs::File::create_new(&target)
            .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o640)))
            .map_err(failed("create"))?;
    }
    let source = format!("/proc/self/fd/{}", handle.as_raw_fd());
    rustix::mount::mount_bind(source, &target).map_err(|error| failed("mount a subPath at")(error.into()))?;
    Ok(target)
}
