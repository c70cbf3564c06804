//! A part of a volume for a container. Blocks.
//!
//! Containers write into volumes, so any step of a path may turn into a link to somewhere else at any moment, also right after it was
//! looked at. So the part is opened once, without leaving the volume, and what was opened is mounted at a place that no container
//! sees; that place is what the runtime gets.

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

use super::{place, system};

/// Why there is no part.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It was missing, and could not be made.
    Create(Error),
    /// It could not be opened or mounted, or leads out of the volume.
    Prepare(Error),
}

/// Mounts a part of a volume at `target`, and tells where that is. What is missing is made with the volume's own mode, as a kubelet
/// does it, so that whoever may use the volume may use it.
pub(super) fn prepare(volume: &Path, part: &str, target: &Path) -> Result<PathBuf, Refusal> {
    let internal = |error: vk_files::Error| Error::internal("open a subPath").caused_by(error);
    // A host path may be a link itself, which the administrator has made.
    let real = volume.canonicalize();
    let real = real.map_err(|error| Refusal::Prepare(place::failed("find", volume, &error)))?;
    let root = RootDir::open(&real).map_err(|error| Refusal::Prepare(internal(error)))?;
    let handle = match root.handle(part) {
        Ok(handle) => handle,
        // Also a link that leads nowhere: a kubelet would try to make what is missing, and say so.
        Err(error) if real.join(part).exists() => return Err(Refusal::Prepare(internal(error))),
        Err(_) => {
            let mode =
                fs::metadata(&real).map_err(|error| Refusal::Create(place::failed("stat", &real, &error)))?;
            root.create_dirs(part, mode.permissions().mode() & 0o7777)
                .map_err(|error| Refusal::Create(internal(error)))?
        }
    };
    mount(&handle, target).map_err(Refusal::Prepare)
}

fn mount(handle: &OwnedFd, target: &Path) -> Result<PathBuf> {
    let wanted = fstat(handle).map_err(|error| place::failed("look at", target, &error.into()))?;
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Error::internal(format!("{} is no place for a subPath", target.display())));
    };
    place::make(parent)?;
    // The table of mounts knows no links.
    let target = parent.canonicalize().map_err(|error| place::failed("find", parent, &error))?.join(name);
    let failed = |operation: &'static str| {
        let target = target.clone();
        move |error: std::io::Error| place::failed(operation, &target, &error)
    };
    while system::at(&target).map_err(failed("look at"))?.is_some() {
        // From the container before this one, or from the process before us.
        let found = fs::symlink_metadata(&target).map_err(failed("look at"))?;
        if (found.dev(), found.ino()) == (wanted.st_dev, wanted.st_ino) {
            return Ok(target);
        }
        system::unmount(&target).map_err(failed("unmount"))?;
    }
    // It may have been of the other kind.
    vk_files::tree::remove(&target).map_err(|error| Error::internal("clear a subPath").caused_by(error))?;
    if FileType::from_raw_mode(wanted.st_mode) == FileType::Directory {
        place::make(&target)?;
    } else {
        fs::File::create_new(&target)
            .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o640)))
            .map_err(failed("create"))?;
    }
    let source = format!("/proc/self/fd/{}", handle.as_raw_fd());
    rustix::mount::mount_bind(source, &target).map_err(|error| failed("mount a subPath at")(error.into()))?;
    Ok(target)
}
