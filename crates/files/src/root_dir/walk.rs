//! Resolution beneath a root without `openat2`: one name at a time, each from an open directory, reading links ourselves.

use std::{
    collections::VecDeque,
    ffi::OsString,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Component, Path},
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

/// The kernel's limit of links.
const MAX_LINKS: usize = 40;

/// Opens the path; fails with `XDEV` if it leads out, like `openat2`.
pub(super) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    // All directories on the way: `..` returns to where we came from, not to where it was moved since.
    let mut trail = vec![root.try_clone_to_owned().map_err(|_| Errno::MFILE)?];
    let mut ahead = VecDeque::new();
    push_front(&mut ahead, path)?;
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        let here = trail.last().ok_or(Errno::XDEV)?;
        if name == ".." {
            trail.pop();
            if trail.is_empty() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let last = ahead.is_empty();
        // O_PATH is safe for anything: it neither waits for a pipe nor touches a device.
        let found =
            fs::openat(here, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        match FileType::from_raw_mode(fs::fstat(&found)?.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                // Read through the handle and not by name, which may be another file by now.
                let target = fs::readlinkat(&found, "", Vec::new())?;
                push_front(&mut ahead, Path::new(&OsString::from_vec(target.into_bytes())))?;
            }
            FileType::Directory => trail.push(found),
            _ if last => return finish(here, &name, found, flags),
            _ => return Err(Errno::NOTDIR),
        }
    }
    let here = trail.pop().ok_or(Errno::XDEV)?;
    if flags.contains(OFlags::PATH) {
        return Ok(here);
    }
    fs::openat(&here, ".", flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the last component, and checks that it is still the same file.
fn finish(here: &OwnedFd, name: &OsString, seen: OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    if flags.contains(OFlags::DIRECTORY) {
        return Err(Errno::NOTDIR);
    }
    if flags.contains(OFlags::PATH) {
        return Ok(seen);
    }
    let opened = fs::openat(here, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let (seen, opened_stat) = (fs::fstat(&seen)?, fs::statat(&opened, "", AtFlags::EMPTY_PATH)?);
    let same = seen.st_dev == opened_stat.st_dev && seen.st_ino == opened_stat.st_ino;
    if same { Ok(opened) } else { Err(Errno::AGAIN) }
}

/// Adds the components of a path before the remaining ones.
fn push_front(ahead: &mut VecDeque<OsString>, path: &Path) -> Result<(), Errno> {
    for component in path.components().rev() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => ahead.push_front(name.to_owned()),
            Component::ParentDir => ahead.push_front(OsString::from("..")),
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    if path.as_os_str().as_bytes().len() > 4096 { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}
