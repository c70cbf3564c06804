//! Payload directories: reading and removing them.

use std::{
    collections::BTreeMap,
    io::Read as _,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};

use crate::{Error, Result};

/// A file in a payload directory.
pub(super) struct PayloadFile {
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
}

/// Reads all files below a directory, by path. Anything but files and directories is an error: we create nothing else.
pub(super) fn read(directory: &OwnedFd, path: &Path) -> Result<BTreeMap<String, PayloadFile>> {
    let mut files = BTreeMap::new();
    collect(directory, "", path, &mut files)?;
    Ok(files)
}

fn collect(
    directory: &OwnedFd,
    prefix: &str,
    path: &Path,
    files: &mut BTreeMap<String, PayloadFile>,
) -> Result<()> {
    let failed = |error: Errno| Error::io("read", path)(error);
    for (name, kind) in entries(directory.as_fd()).map_err(failed)? {
        let inside = format!("{prefix}{name}");
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match kind {
            FileType::Directory => {
                let below = fs::openat(directory, name.as_str(), flags | OFlags::DIRECTORY, Mode::empty());
                collect(&below.map_err(failed)?, &format!("{inside}/"), path, files)?;
            }
            FileType::RegularFile => {
                let file = fs::openat(directory, name.as_str(), flags, Mode::empty()).map_err(failed)?;
                let stat = fs::fstat(&file).map_err(failed)?;
                let mut content = Vec::new();
                std::fs::File::from(file).read_to_end(&mut content).map_err(Error::io("read", path))?;
                let mode = stat.st_mode & 0o7777;
                files.insert(inside, PayloadFile { content, mode, owner: stat.st_uid, group: stat.st_gid });
            }
            _ => return Err(Error::WrongType { path: path.join(inside), expected: "regular file" }),
        }
    }
    Ok(())
}

/// The names and types of a directory's entries. Names that are not UTF-8 are not ours and are skipped.
pub(super) fn entries(directory: BorrowedFd<'_>) -> Result<Vec<(String, FileType)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems do not report it.
            FileType::Unknown => {
                FileType::from_raw_mode(fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}

/// Removes a directory with everything in it. Links are removed and not followed.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match fs::openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        answer => answer?,
    };
    for (name, kind) in entries(directory.as_fd())? {
        if kind == FileType::Directory {
            remove(directory.as_fd(), &name)?;
        } else {
            fs::unlinkat(&directory, name.as_str(), AtFlags::empty())?;
        }
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        answer => answer,
    }
}
