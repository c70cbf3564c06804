//! Directory trees filled by containers: removing them, and changing their group.
//!
//! Containers may have created anything: links to anywhere, names that are not UTF-8, a thousand levels. Nothing here follows a link,
//! and nothing is removed across a mount point: mounts in a tree belong to somebody else.

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{Error, Result};

/// Levels that are open at a time while removing; deeper directories are moved to the top first.
const OPEN_LEVELS: usize = 32;
/// Names that are read before they are removed: a directory may hold millions.
const BATCH: usize = 1024;
/// Maximum depth of a tree whose group is changed.
const MAX_DEPTH: usize = 256;
/// Permissions of the group, as in the kubelet: for writable and read-only volumes, and in addition for directories.
const RW_MASK: u32 = 0o660;
const RO_MASK: u32 = 0o440;
const DIR_MASK: u32 = 0o2110;

/// Removes a file or directory with everything in it; a missing path is fine. If something is mounted in the tree, this fails with
/// [`Error::Mounted`] and leaves the mount alone.
pub fn remove(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        let path = path.to_string_lossy().into_owned();
        return Err(Error::InvalidPath { path, why: "must name something in a directory" });
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above = match fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        answer => answer.map_err(Error::io("open directory", parent))?,
    };
    let name = c_name(name).ok_or_else(|| Error::InvalidPath {
        path: path.to_string_lossy().into_owned(),
        why: "must not contain a zero byte",
    })?;
    Removal { path }.remove(&above, &name)
}

struct Removal<'a> {
    path: &'a Path,
}

impl Removal<'_> {
    fn remove(&self, above: &OwnedFd, name: &CString) -> Result<()> {
        match fs::unlinkat(above, name.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(Errno::BUSY) => return Err(self.mounted()),
            Err(error) => return Err(self.failed("remove", error)),
        }
        let Some(top) = self.open_child(above, name)? else { return Ok(()) };
        let mut moved = 0;
        self.clear(&top, &top, 0, &mut moved)?;
        self.remove_dir(above, name)
    }

    /// Removes the content of a directory. Directories that are too deep are moved to the top and removed later.
    fn clear(&self, directory: &OwnedFd, top: &OwnedFd, depth: usize, moved: &mut u64) -> Result<()> {
        loop {
            let names = names(directory, BATCH).map_err(|error| self.failed("list directory", error))?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                match fs::unlinkat(directory, name.as_c_str(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR) => {}
                    Err(Errno::BUSY) => return Err(self.mounted()),
                    Err(error) => return Err(self.failed("remove", error)),
                }
                if depth == OPEN_LEVELS {
                    self.move_to_top(directory, &name, top, moved)?;
                } else if let Some(child) = self.open_child(directory, &name)? {
                    self.clear(&child, top, depth + 1, moved)?;
                    self.remove_dir(directory, &name)?;
                }
            }
        }
    }

    fn move_to_top(&self, directory: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> Result<()> {
        loop {
            let lifted = format!(".removed-{moved}");
            *moved += 1;
            match fs::renameat(directory, name.as_c_str(), top, lifted.as_str()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(Errno::XDEV | Errno::BUSY) => return Err(self.mounted()),
                Err(error) => return Err(self.failed("move", error)),
            }
        }
    }

    fn open_child(&self, above: &OwnedFd, name: &CString) -> Result<Option<OwnedFd>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = match fs::openat2(above, name.as_c_str(), flags, Mode::empty(), resolve) {
            // Old kernels do not have the call, and some sandboxes forbid it: then only other file systems are recognised.
            Err(Errno::NOSYS | Errno::PERM) => {
                let opened = fs::openat(above, name.as_c_str(), flags, Mode::empty());
                let device = |fd: &OwnedFd| fs::fstat(fd).map(|stat| stat.st_dev);
                match opened {
                    Ok(opened) if device(&opened) != device(above) => Err(Errno::XDEV),
                    opened => opened,
                }
            }
            opened => opened,
        };
        match opened {
            Ok(opened) => Ok(Some(opened)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => Err(self.mounted()),
            Err(error) => Err(self.failed("open directory", error)),
        }
    }

    fn remove_dir(&self, above: &OwnedFd, name: &CString) -> Result<()> {
        match fs::unlinkat(above, name.as_c_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Err(self.mounted()),
            Err(error) => Err(self.failed("remove directory", error)),
        }
    }

    fn mounted(&self) -> Error {
        Error::Mounted { path: self.path.to_owned() }
    }

    fn failed(&self, operation: &'static str, error: Errno) -> Error {
        Error::io(operation, format!("below {}", self.path.display()))(error)
    }
}

/// Changes the group of a tree as the kubelet does for `fsGroup`: the group may read, and write if `writable`; new files in
/// directories inherit the group. Links are changed and not followed. Returns the number of failures: like the kubelet, this goes
/// on, because not every file system supports groups.
pub fn set_fs_group(path: impl AsRef<Path>, group: u32, writable: bool) -> Result<usize> {
    let path = path.as_ref();
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = fs::open(path, flags, Mode::empty()).map_err(Error::io("open directory", path))?;
    let change = FsGroupChange { path, group, mask: if writable { RW_MASK } else { RO_MASK } };
    let mut refused = 0;
    change.apply_below(&top, 0, &mut refused)?;
    refused += usize::from(!change.apply(&top));
    Ok(refused)
}

struct FsGroupChange<'a> {
    path: &'a Path,
    group: u32,
    mask: u32,
}

impl FsGroupChange<'_> {
    fn apply_below(&self, directory: &OwnedFd, depth: usize, refused: &mut usize) -> Result<()> {
        if depth == MAX_DEPTH {
            return Err(Error::InvalidPath {
                path: self.path.to_string_lossy().into_owned(),
                why: "has more than 256 levels of directories, too many to change their group",
            });
        }
        let failed = |error: Errno| Error::io("read", self.path)(error);
        for name in names(directory, usize::MAX).map_err(failed)? {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = match fs::openat(directory, name.as_c_str(), flags, Mode::empty()) {
                // It was removed meanwhile.
                Err(Errno::NOENT) => continue,
                answer => answer.map_err(failed)?,
            };
            if kind(&below).map_err(failed)? == FileType::Directory {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inside = fs::openat(&below, c".", flags, Mode::empty()).map_err(failed)?;
                self.apply_below(&inside, depth + 1, refused)?;
            }
            *refused += usize::from(!self.apply(&below));
        }
        Ok(())
    }

    fn apply(&self, file: &OwnedFd) -> bool {
        let changed =
            fs::chownat(file, c"", None, Some(Gid::from_raw(self.group)), AtFlags::EMPTY_PATH).is_ok();
        let Ok(stat) = fs::fstat(file) else { return false };
        let dir_mask = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => return changed,
            FileType::Directory => DIR_MASK,
            _ => 0,
        };
        let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | self.mask | dir_mask);
        // fchmod does not work on an O_PATH handle, but its path in /proc leads exactly to it.
        changed && fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode).is_ok()
    }
}

fn kind(file: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(fs::fstat(file)?.st_mode))
}

fn names(directory: impl AsFd, most: usize) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
            if names.len() == most {
                break;
            }
        }
    }
    Ok(names)
}

fn c_name(name: &OsStr) -> Option<CString> {
    CString::new(name.as_bytes()).ok()
}

/// Whether a tree has this group already, judged by its root only, for `fsGroupChangePolicy: OnRootMismatch`.
pub fn has_fs_group(path: impl Into<PathBuf>, group: u32, writable: bool) -> bool {
    let path = path.into();
    let expected = (if writable { RW_MASK } else { RO_MASK }) | DIR_MASK;
    fs::stat(&path).is_ok_and(|stat| {
        stat.st_gid == group
            && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && stat.st_mode & expected == expected
    })
}

#[cfg(test)]
mod tests;
