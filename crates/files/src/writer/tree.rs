//! Directories as a whole: what is in them, and their end.

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

/// A file as it is.
pub(super) struct Found {
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
    pub(super) owner: u32,
    pub(super) group: u32,
}

/// All files below a directory by their path. Anything but files and directories is an error, for we make nothing else.
pub(super) fn read(directory: &OwnedFd, path: &Path) -> Result<BTreeMap<String, Found>> {
    let mut files = BTreeMap::new();
    collect(directory, "", path, &mut files)?;
    Ok(files)
}

fn collect(
    directory: &OwnedFd,
    prefix: &str,
    path: &Path,
    files: &mut BTreeMap<String, Found>,
) -> Result<()> {
    let failed = |error: Errno| Error::system("read", path)(error);
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
                std::fs::File::from(file).read_to_end(&mut content).map_err(Error::system("read", path))?;
                let mode = stat.st_mode & 0o7777;
                files.insert(inside, Found { content, mode, owner: stat.st_uid, group: stat.st_gid });
            }
            _ => return Err(Error::Unlike { path: path.join(inside), wanted: "regular file" }),
        }
    }
    Ok(())
}

/// Names and kinds of what is in a directory. Names that are no text are nothing of ours, and left out.
pub(super) fn entries(directory: BorrowedFd<'_>) -> Result<Vec<(String, FileType)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems do not say.
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

/// Removes a directory with all that is in it. Links are removed and not followed.
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
