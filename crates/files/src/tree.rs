//! Trees of directories whose content belongs to somebody else: their end, and the group that they are given to.
//!
//! Containers have filled these directories, with whatever they liked: links to anywhere, names that are no text, a thousand levels.
//! Nothing here follows a link, and nothing is removed on the far side of a mount: what is mounted in a tree belongs to another.

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

/// How deep we go before what is deeper is brought to the top: every level holds an open directory.
const DEPTH: usize = 32;
/// How many names are read before they are removed: a directory may hold millions.
const BATCH: usize = 1024;
/// How deep a tree may be that is given to a group.
const DEEPEST: usize = 256;
/// What the group may do: with files, with directories beyond that, and where nobody shall write.
const READS_AND_WRITES: u32 = 0o660;
const READS: u32 = 0o440;
const ENTERS: u32 = 0o2110;

/// Removes whatever is at the path with all that is in it; nothing there is fine. A tree in which something is mounted is an
/// error ([`Error::Mounted`]), and what is mounted stays as it is.
pub fn remove(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        let path = path.to_string_lossy().into_owned();
        return Err(Error::Path { path, why: "must name something in a directory" });
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above = match fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        answer => answer.map_err(Error::system("open directory", parent))?,
    };
    let name = c_name(name).ok_or_else(|| Error::Path {
        path: path.to_string_lossy().into_owned(),
        why: "must not contain a zero byte",
    })?;
    Removal { path }.whole(&above, &name)
}

struct Removal<'a> {
    path: &'a Path,
}

impl Removal<'_> {
    fn whole(&self, above: &OwnedFd, name: &CString) -> Result<()> {
        match fs::unlinkat(above, name.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(Errno::BUSY) => return Err(self.mounted()),
            Err(error) => return Err(self.failed("remove", error)),
        }
        let Some(top) = self.enter(above, name)? else { return Ok(()) };
        let mut moved = 0;
        self.clear(&top, &top, 0, &mut moved)?;
        self.leave(above, name)
    }

    /// Removes what is in a directory. What is too deep moves to the top, where its turn comes.
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
                if depth == DEPTH {
                    self.lift(directory, &name, top, moved)?;
                } else if let Some(child) = self.enter(directory, &name)? {
                    self.clear(&child, top, depth + 1, moved)?;
                    self.leave(directory, &name)?;
                }
            }
        }
    }

    fn lift(&self, directory: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64) -> Result<()> {
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

    fn enter(&self, above: &OwnedFd, name: &CString) -> Result<Option<OwnedFd>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = match fs::openat2(above, name.as_c_str(), flags, Mode::empty(), resolve) {
            // Old kernels do not know the call, and some sandboxes forbid it: then only another file system is seen as one.
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

    fn leave(&self, above: &OwnedFd, name: &CString) -> Result<()> {
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
        Error::system(operation, format!("below {}", self.path.display()))(error)
    }
}

/// Gives a tree to a group, the way a kubelet does with `fsGroup`: the group may read, and write where `writable`; directories
/// pass the group on to what is made in them. Links are given and not followed. Answers how many things refused it: a kubelet
/// goes on then, because not every file system has groups.
pub fn give(path: impl AsRef<Path>, group: u32, writable: bool) -> Result<usize> {
    let path = path.as_ref();
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = fs::open(path, flags, Mode::empty()).map_err(Error::system("open directory", path))?;
    let gift = Gift { path, group, mask: if writable { READS_AND_WRITES } else { READS } };
    let mut refused = 0;
    gift.content(&top, 0, &mut refused)?;
    refused += usize::from(!gift.one(&top));
    Ok(refused)
}

struct Gift<'a> {
    path: &'a Path,
    group: u32,
    mask: u32,
}

impl Gift<'_> {
    fn content(&self, directory: &OwnedFd, depth: usize, refused: &mut usize) -> Result<()> {
        if depth == DEEPEST {
            return Err(Error::Path {
                path: self.path.to_string_lossy().into_owned(),
                why: "has more than 256 levels of directories, too many to give to a group",
            });
        }
        let failed = |error: Errno| Error::system("read", self.path)(error);
        for name in names(directory, usize::MAX).map_err(failed)? {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = match fs::openat(directory, name.as_c_str(), flags, Mode::empty()) {
                // It went meanwhile.
                Err(Errno::NOENT) => continue,
                answer => answer.map_err(failed)?,
            };
            if kind(&below).map_err(failed)? == FileType::Directory {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inside = fs::openat(&below, c".", flags, Mode::empty()).map_err(failed)?;
                self.content(&inside, depth + 1, refused)?;
            }
            *refused += usize::from(!self.one(&below));
        }
        Ok(())
    }

    fn one(&self, file: &OwnedFd) -> bool {
        let given =
            fs::chownat(file, c"", None, Some(Gid::from_raw(self.group)), AtFlags::EMPTY_PATH).is_ok();
        let Ok(stat) = fs::fstat(file) else { return false };
        let enters = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => return given,
            FileType::Directory => ENTERS,
            _ => 0,
        };
        let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | self.mask | enters);
        // A handle opened with O_PATH takes no fchmod, but it has a path that leads to it and nowhere else.
        given && fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode).is_ok()
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

/// Whether a tree belongs to a group already, judged by its top alone: what `fsGroupChangePolicy: OnRootMismatch` asks.
pub fn is_given(path: impl Into<PathBuf>, group: u32, writable: bool) -> bool {
    let path = path.into();
    let wanted = (if writable { READS_AND_WRITES } else { READS }) | ENTERS;
    fs::stat(&path).is_ok_and(|stat| {
        stat.st_gid == group
            && FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && stat.st_mode & wanted == wanted
    })
}

#[cfg(test)]
mod tests;
