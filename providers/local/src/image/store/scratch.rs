//! Directories in which things are made, and removed where they were not finished.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Uid, XattrFlags, makedev};

use super::{
    super::unpack::{OPAQUE, remove_at},
    lock::{self, Lock},
    names,
};
use crate::image::{Error, Form, Result};

/// A directory of ours in `tmp`. It goes with all that is in it when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// Says that we live. Taken away last.
    _lock: File,
}

impl Scratch {
    pub(super) fn new(root: &Path) -> Result<Self> {
        let lock = Lock::shared(root)?;
        Self::under(&lock, root)
    }

    /// The lock keeps others from taking it for a leftover before it has its own.
    pub(super) fn under(_lock: &Lock, root: &Path) -> Result<Self> {
        let path = root.join("tmp").join(format!("{:016x}", rand::random::<u64>()));
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(Error::system("make", &path))?;
        match lock::own(&path)? {
            Some(lock) => Ok(Self { path, _lock: lock }),
            None => Err(Error::io("lock", io::Error::other(format!("{} is not ours", path.display())))),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it.
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

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove_at(CWD, self.path.as_os_str()) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove what was not finished");
        }
    }
}

/// Removes what processes left that died; returns what those claim that live.
pub(super) fn clean(_lock: &Lock, root: &Path) -> Result<Vec<String>> {
    let tmp = root.join("tmp");
    let mut claimed = Vec::new();
    for name in names(&tmp)? {
        let path = tmp.join(&name);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_directory && lock::own(&path)?.is_none() {
            let keep = path.join("keep");
            if keep.exists() {
                claimed.extend(names(&keep)?.into_iter().filter_map(|name| name.into_string().ok()));
            }
            continue;
        }
        tracing::info!(path = %path.display(), "removing what a process left that died");
        remove_at(CWD, path.as_os_str()).map_err(Error::system("remove", &path))?;
    }
    Ok(claimed)
}

/// Whether layers can be kept as overlayfs reads them: root may, where nobody took its rights away.
pub(super) fn found_form(root: &Path) -> Result<Form> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Form::Plain);
    }
    let scratch = Scratch::new(root)?;
    let directory = scratch.directory("probe")?;
    let attempt = || {
        rustix::fs::setxattr(&directory, OPAQUE, b"y", XattrFlags::empty())?;
        let sign = directory.join("sign");
        rustix::fs::mknodat(CWD, &sign, FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?;
        let (uid, gid) = (Uid::from_raw(1), Gid::from_raw(1));
        rustix::fs::chownat(CWD, &sign, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    };
    Ok(match attempt() {
        Ok(()) => Form::Overlay,
        Err(error) => {
            tracing::warn!(%error, "layers cannot be kept as overlayfs reads them; they are kept as plain files");
            Form::Plain
        }
    })
}
