//! All layers of an image flattened into one tree, for programs that run as plain processes.

use std::{
    ffi::OsStr,
    fs as std_fs,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
};

use rustix::{
    fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps},
    io::Errno,
};

use super::{Store, temp_dir::StoreTempDir};
use crate::image::{
    Digest, Error, Result, StoredImage,
    unpack::{OPAQUE, OPAQUE_MARKER, WHITEOUT, is_whiteout, remove_at},
};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Store {
    /// A tree with all layers of an image, created once by hard-linking the layers' files. Read-only: a change to a
    /// file would change it for all. Blocks.
    pub fn flat_image(&self, image: &StoredImage) -> Result<PathBuf> {
        let top = match image.layers.last().and_then(|layer| layer.parent()?.file_name()?.to_str()) {
            Some(chain) => chain.to_owned(),
            None => image.id.parse::<Digest>()?.hex(),
        };
        let target = self.root.join("flat").join(top);
        if target.symlink_metadata().is_ok() {
            return Ok(target);
        }
        let temp_dir = StoreTempDir::new(&self.root)?;
        let tree = temp_dir.directory("tree")?;
        let failed = |error: Errno| Error::io(&format!("merge the layers of {}", image.id), error.into());
        for layer in &image.layers {
            let from = fs::open(layer, DIRECTORY, Mode::empty()).map_err(failed)?;
            let to = fs::open(&tree, DIRECTORY, Mode::empty()).map_err(failed)?;
            merge(from.as_fd(), to.as_fd()).map_err(failed)?;
        }
        match std_fs::rename(&tree, &target) {
            Err(error) if target.symlink_metadata().is_err() => Err(Error::system("rename", &target)(error)),
            _ => Ok(target),
        }
    }
}

fn merge(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let names = list(from)?;
    let mut value = [0; 1];
    if names.iter().any(|name| name == OPAQUE_MARKER) || fs::fgetxattr(from, OPAQUE, &mut value).is_ok() {
        for name in list(to)? {
            remove_at(to, os(&name))?;
        }
    }
    for name in &names {
        if let Some(gone) = name.strip_prefix(WHITEOUT).filter(|_| name != OPAQUE_MARKER) {
            remove_at(to, os(gone))?;
        }
    }
    for name in names.iter().filter(|name| !name.starts_with(WHITEOUT)) {
        let stat = fs::statat(from, os(name), AtFlags::SYMLINK_NOFOLLOW)?;
        if is_whiteout(&stat) {
            remove_at(to, os(name))?;
        } else if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let inner = open(from, name)?;
            merge(inner.as_fd(), directory(to, name)?.as_fd())?;
        } else {
            remove_at(to, os(name))?;
            fs::linkat(from, os(name), to, os(name), AtFlags::empty())?;
        }
    }
    let stat = fs::fstat(from)?;
    // Always readable and removable by us.
    fs::fchmod(to, Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o700))?;
    let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0) };
    fs::futimens(to, &Timestamps { last_access: time, last_modification: time })
}

/// Opens the directory with this name, replacing anything else.
fn directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open(parent, name) {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => remove_at(parent, os(name))?,
        answer => return answer,
    }
    fs::mkdirat(parent, os(name), Mode::from_raw_mode(0o700))?;
    open(parent, name)
}

fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    fs::openat(parent, os(name), DIRECTORY, Mode::empty())
}

fn list(directory: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    Dir::read_from(directory)?
        .map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()))
        .filter(|name| !matches!(name.as_deref(), Ok(b"." | b"..")))
        .collect()
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}
