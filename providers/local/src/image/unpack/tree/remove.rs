//! Removal of untrusted directory trees.

use std::{ffi::OsStr, os::fd::AsFd};

use rustix::{
    fs::{self, AtFlags, Dir, Mode},
    io::Errno,
};

use super::walk::DIRECTORY;

/// Removes a file or directory tree, never following links. It may not exist.
pub(crate) fn remove_at(parent: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    let parent = parent.as_fd();
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let directory = match fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut entries = Dir::read_from(&directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            use std::os::unix::ffi::OsStrExt as _;
            remove_at(&directory, OsStr::from_bytes(name.to_bytes()))?;
        }
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}
