//! Temporary directories, which are removed unless their content was moved away.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags, makedev};

use super::{
    super::unpack::{OPAQUE, remove_at},
    lock::{self, StoreLock},
    names,
};
use crate::image::{Error, LayerFormat, Result};

/// A directory in `tmp`, removed on drop.
#[derive(Debug)]
pub(crate) struct StoreTempDir {
    path: PathBuf,
    /// Shows that this process is alive. Released last.
    _lock: File,
}

impl StoreTempDir {
    pub(super) fn new(root: &Path) -> Result<Self> {
        let lock = StoreLock::shared(root)?;
        Self::new_locked(&lock, root)
    }

    /// The lock prevents others from removing the directory before it is locked itself.
    pub(super) fn new_locked(_lock: &StoreLock, root: &Path) -> Result<Self> {
        let path = root.join("tmp").join(format!("{:016x}", rand::random::<u64>()));
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(Error::system("make", &path))?;
        match lock::try_lock(&path)? {
            Some(lock) => Ok(Self { path, _lock: lock }),
            None => Err(Error::io("lock", io::Error::other(format!("{} is already locked", path.display())))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a directory in it.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(Error::system("make", &path))?;
        Ok(path)
    }
}

impl Drop for StoreTempDir {
    fn drop(&mut self) {
        if let Err(error) = remove_at(CWD, self.path.as_os_str()) {
            tracing::warn!(path = %self.path.display(), %error, "removing a temporary directory failed");
        }
    }
}

/// Removes the directories of dead processes; returns the layers that live ones claim.
pub(super) fn remove_dead(_lock: &StoreLock, root: &Path) -> Result<Vec<String>> {
    let tmp = root.join("tmp");
    let mut claimed = Vec::new();
    for name in names(&tmp)? {
        let path = tmp.join(&name);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_directory && lock::try_lock(&path)?.is_none() {
            let keep = path.join("keep");
            if keep.exists() {
                claimed.extend(names(&keep)?.into_iter().filter_map(|name| name.into_string().ok()));
            }
            continue;
        }
        tracing::info!(path = %path.display(), "removing the temporary directory of a dead process");
        remove_at(CWD, path.as_os_str()).map_err(Error::system("remove", &path))?;
    }
    Ok(claimed)
}

/// Detects whether layers can be stored in overlayfs format, which needs the privileges of root.
pub(super) fn detect_layer_format(root: &Path) -> Result<LayerFormat> {
    if !rustix::process::geteuid().is_root() {
        return Ok(LayerFormat::Plain);
    }
    let temp_dir = StoreTempDir::new(root)?;
    let directory = temp_dir.directory("probe")?;
    let attempt = || {
        rustix::fs::setxattr(&directory, OPAQUE, b"y", XattrFlags::empty())?;
        let sign = directory.join("sign");
        rustix::fs::mknodat(CWD, &sign, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?;
        let (uid, gid) = (Uid::from_raw(1), Gid::from_raw(1));
        rustix::fs::chownat(CWD, &sign, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    };
    Ok(match attempt() {
        Ok(()) => LayerFormat::Overlay,
        Err(error) => {
            tracing::warn!(%error, "layers cannot be stored in overlayfs format; they are stored as plain files");
            LayerFormat::Plain
        }
    })
}
