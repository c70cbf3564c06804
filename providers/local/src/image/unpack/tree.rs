//! The directory of a layer. Every step starts from an open directory, and links are only followed by our own code.

mod remove;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::File,
    io::{BufRead, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, makedev},
    io::Errno,
};

pub(crate) use self::remove::remove_at;
use self::walk::{Found, Trail};
use super::{
    Form, Usage,
    tape::{Entry, Kind, Tape},
};
use crate::image::{Error, Result};

/// Prefix of a whiteout file, which hides a file of the layers below.
pub(crate) const WHITEOUT: &[u8] = b".wh.";
/// The file that hides everything of the layers below in its directory.
pub(crate) const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
/// The overlayfs attribute with the same meaning.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";
/// Files that aufs kept in layers.
const FOREIGN: &[u8] = b".wh..wh.";

/// The directory of a layer that is being unpacked.
pub(super) struct Tree {
    trail: Trail,
    form: Form,
    usage: Usage,
    /// Directories that have had no entry yet.
    implied: BTreeSet<Vec<u8>>,
    /// Modification times of directories, to be set at the end.
    times: BTreeMap<Vec<u8>, (i64, u32)>,
}

// === impl Tree ===

impl Tree {
    pub(super) fn open(path: &Path, form: Form) -> Result<Self> {
        let root = fs::open(path, walk::DIRECTORY, Mode::empty()).map_err(Error::system("open", path))?;
        let implied = BTreeSet::from([Vec::new()]);
        Ok(Self { trail: Trail::new(root), form, usage: Usage::default(), implied, times: BTreeMap::new() })
    }

    /// Applies an entry.
    pub(super) fn apply<R: BufRead>(&mut self, entry: &Entry, tape: &mut Tape<R>) -> Result<()> {
        let shown = String::from_utf8_lossy(&entry.path).into_owned();
        self.entry(entry, tape).map_err(|error| error.within(&shown))
    }

    fn entry<R: BufRead>(&mut self, entry: &Entry, tape: &mut Tape<R>) -> Result<()> {
        let names = walk::names(&entry.path)?;
        let Some((&name, parents)) = names.split_last() else {
            return self.root(entry);
        };
        let found = self.parent(parents, true)?;
        if name.starts_with(WHITEOUT) {
            return self.whiteout(&found, name);
        }
        let child = found.child(name);
        let parent = found.directory.as_fd();
        match entry.kind {
            Kind::Directory => return self.directory(parent, name, child, entry),
            Kind::File => self.file(parent, name, entry, tape)?,
            Kind::Symlink => self.make(parent, name, |name| fs::symlinkat(link(entry), parent, name))?,
            Kind::HardLink => return self.hard_link(parent, name, entry),
            Kind::Fifo => self.make(parent, name, |name| {
                fs::mknodat(parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            })?,
            Kind::Device => {
                return Err(Error::corrupt(
                    "a device node, which images must not contain: pods get devices from the node",
                ));
            }
        }
        self.usage.inodes += 1;
        if entry.kind != Kind::File {
            self.owner_at(parent, name, entry)?;
            if entry.kind == Kind::Fifo {
                fs::chmodat(parent, os(name), Mode::from_raw_mode(entry.mode), AtFlags::empty())
                    .map_err(failed("chmod"))?;
            }
            fs::utimensat(parent, os(name), &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("utimes"))?;
        }
        Ok(())
    }

    /// Sets the times of directories; returns the disk usage, and the directories without an entry.
    pub(super) fn finish(self) -> Result<(Usage, Vec<Vec<u8>>)> {
        for (path, time) in &self.times {
            // A path that is no longer a directory has its time already.
            if let Some(directory) = self.trail.plain(path) {
                fs::futimens(&directory, &times(*time)).map_err(failed("utimes"))?;
            }
        }
        Ok((self.usage, self.implied.into_iter().collect()))
    }

    fn root(&mut self, entry: &Entry) -> Result<()> {
        if entry.kind != Kind::Directory {
            return Err(Error::corrupt("the root of a layer must be a directory"));
        }
        let root = self.trail.root();
        self.implied.remove(&Vec::new());
        self.times.insert(Vec::new(), entry.mtime);
        self.dress(root.as_fd(), entry)
    }

    fn parent(&mut self, names: &[&[u8]], make: bool) -> Result<Found> {
        let (form, implied) = (self.form, &mut self.implied);
        let inodes = &mut self.usage.inodes;
        self.trail.find(names, |directory, name, path| {
            if !make {
                return Err(Error::corrupt("not in the layer"));
            }
            match fs::mkdirat(directory, os(name), Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                // A whiteout: the new directory must not show what it hid.
                Err(Errno::EXIST) => {
                    fs::unlinkat(directory, os(name), AtFlags::empty()).map_err(failed("unlink"))?;
                    fs::mkdirat(directory, os(name), Mode::from_raw_mode(0o755)).map_err(failed("mkdir"))?;
                    let made = open(directory, name)?;
                    opaque(made.as_fd(), form)?;
                }
                Err(error) => return Err(failed("mkdir")(error)),
            }
            *inodes += 1;
            implied.insert(path.to_vec());
            // Regardless of the umask.
            let made = open(directory, name)?;
            fs::fchmod(&made, Mode::from_raw_mode(0o755)).map_err(failed("chmod"))?;
            Ok(made)
        })
    }

    fn whiteout(&mut self, found: &Found, name: &[u8]) -> Result<()> {
        let parent = found.directory.as_fd();
        if name == OPAQUE_MARK {
            return opaque(parent, self.form);
        }
        if name.starts_with(FOREIGN) {
            return Ok(());
        }
        let gone = &name[WHITEOUT.len()..];
        if matches!(gone, b"" | b"." | b"..") {
            return Err(Error::corrupt("a whiteout without a name"));
        }
        if self.form == Form::Plain {
            return self.make(parent, name, |name| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                fs::openat(parent, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600)).map(drop)
            });
        }
        // It hides files of the layers below, not of its own layer.
        match look(parent, gone)? {
            Some(stat) if is_directory(&stat) => opaque(open(parent, gone)?.as_fd(), self.form),
            Some(_) => Ok(()),
            None => {
                self.usage.inodes += 1;
                let mode = Mode::empty();
                fs::mknodat(parent, os(gone), FileType::CharacterDevice, mode, makedev(0, 0))
                    .map_err(failed("mknod"))
            }
        }
    }

    fn directory(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: Vec<u8>, entry: &Entry) -> Result<()> {
        let mode = Mode::from_raw_mode(0o700);
        match fs::mkdirat(parent, os(name), mode) {
            Ok(()) => self.usage.inodes += 1,
            Err(Errno::EXIST) => match look(parent, name)? {
                Some(stat) if is_directory(&stat) => {}
                there => {
                    self.clear(parent, name)?;
                    fs::mkdirat(parent, os(name), mode).map_err(failed("mkdir"))?;
                    self.usage.inodes += 1;
                    if there.is_some_and(|there| is_whiteout(&there)) {
                        opaque(open(parent, name)?.as_fd(), self.form)?;
                    }
                }
            },
            Err(error) => return Err(failed("mkdir")(error)),
        }
        let directory = open(parent, name)?;
        self.dress(directory.as_fd(), entry)?;
        self.implied.remove(&path);
        self.times.insert(path, entry.mtime);
        Ok(())
    }

    fn file<R: BufRead>(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        tape: &mut Tape<R>,
    ) -> Result<()> {
        let mut made = None;
        self.make(parent, name, |name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            made = Some(fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
            Ok(())
        })?;
        let Some(file) = made else { return Ok(()) };
        let mut file = File::from(file);
        tape.contents(|bytes| file.write_all(bytes))?;
        self.usage.bytes += entry.size;
        self.dress(file.as_fd(), entry)?;
        fs::futimens(&file, &times(entry.mtime)).map_err(failed("utimes"))
    }

    fn hard_link(&mut self, parent: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> Result<()> {
        let target = String::from_utf8_lossy(&entry.link).into_owned();
        let refused = |error: Error| error.within(&format!("hard link to {target}"));
        let names = walk::names(&entry.link).map_err(refused)?;
        let Some((&last, parents)) = names.split_last() else {
            return Err(refused(Error::corrupt("a directory cannot be hard-linked")));
        };
        let from = self.parent(parents, false).map_err(refused)?;
        let there = look(from.directory.as_fd(), last).map_err(refused)?;
        match there {
            None => return Err(refused(Error::corrupt("not in the layer"))),
            Some(stat) if is_directory(&stat) => {
                return Err(refused(Error::corrupt("a directory cannot be hard-linked")));
            }
            Some(stat) if is_whiteout(&stat) => {
                return Err(refused(Error::corrupt("not in the layer")));
            }
            Some(_) => {}
        }
        // A link to itself.
        if look(parent, name)?.zip(there).is_some_and(|(a, b)| a.st_ino == b.st_ino) {
            return Ok(());
        }
        self.make(parent, name, |name| fs::linkat(&from.directory, os(last), parent, name, AtFlags::empty()))
            .map_err(refused)
    }

    /// Creates something, replacing what exists.
    fn make(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        mut make: impl FnMut(&OsStr) -> Result<(), Errno>,
    ) -> Result<()> {
        match make(os(name)) {
            Err(Errno::EXIST) => {
                self.clear(parent, name)?;
                make(os(name)).map_err(failed("create"))
            }
            answer => answer.map_err(failed("create")),
        }
    }

    fn clear(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        // Cached paths may lead through it.
        self.trail.forget();
        remove_at(parent, os(name)).map_err(failed("remove"))
    }

    /// Sets owner, mode and attributes.
    fn dress(&self, file: BorrowedFd<'_>, entry: &Entry) -> Result<()> {
        let mut mode = entry.mode;
        if self.form == Form::Overlay {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            fs::fchown(file, Some(uid), Some(gid)).map_err(failed("chown"))?;
        } else if entry.kind == Kind::Directory {
            // Always readable, writable and removable by us.
            mode |= 0o700;
        } else {
            // Setuid programs would run as us for any user.
            mode &= 0o777;
        }
        // After the owner, because changing it clears these bits.
        fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed("chmod"))?;
        for (name, value) in &entry.xattrs {
            if !self.wanted(name) {
                tracing::debug!(name = %String::from_utf8_lossy(name), "ignoring an extended attribute");
                continue;
            }
            match fs::fsetxattr(file, os(name), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::NOTSUP) => {
                    tracing::debug!(name = %String::from_utf8_lossy(name), "extended attributes are not supported by the filesystem");
                }
                Err(error) => return Err(failed("setxattr")(error)),
            }
        }
        Ok(())
    }

    fn owner_at(&self, parent: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> Result<()> {
        if self.form == Form::Plain {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        fs::chownat(parent, os(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("chown"))
    }

    /// Whether an image may set this extended attribute. Those of overlayfs would change what other layers show.
    fn wanted(&self, name: &[u8]) -> bool {
        let users = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
        users
            || (self.form == Form::Overlay
                && matches!(
                    name,
                    b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default"
                ))
    }
}

/// Copies the attributes of directories without an entry from the layers below, the nearest first. Otherwise the layer
/// would change them to defaults.
pub(crate) fn adopt(layer: &Path, implied: &[Vec<u8>], below: &[impl AsRef<Path>], form: Form) -> Result<()> {
    if implied.is_empty() || below.is_empty() {
        return Ok(());
    }
    let trail = |path: &Path| {
        fs::open(path, walk::DIRECTORY, Mode::empty()).map(Trail::new).map_err(Error::system("open", path))
    };
    let layer = trail(layer)?;
    let below = below.iter().rev().map(|path| trail(path.as_ref())).collect::<Result<Vec<_>>>()?;
    // Children first, because changing them changes the time of the parent.
    for path in implied.iter().rev() {
        let Some(directory) = layer.plain(path) else { continue };
        let Some(model) = below.iter().find_map(|layer| layer.plain(path)) else { continue };
        let stat = fs::fstat(&model).map_err(failed("stat"))?;
        if form == Form::Overlay {
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            fs::fchown(&directory, Some(uid), Some(gid)).map_err(failed("chown"))?;
        }
        fs::fchmod(&directory, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(failed("chmod"))?;
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        fs::futimens(&directory, &times((stat.st_mtime, nanos))).map_err(failed("utimes"))?;
    }
    Ok(())
}

/// Whether this is an overlayfs whiteout.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Makes a directory hide everything of the layers below.
fn opaque(directory: BorrowedFd<'_>, form: Form) -> Result<()> {
    match form {
        Form::Overlay => {
            fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty()).map_err(failed("setxattr"))
        }
        Form::Plain => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            fs::openat(directory, os(OPAQUE_MARK), flags, Mode::from_raw_mode(0o600))
                .map(drop)
                .map_err(failed("create"))
        }
    }
}

fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    fs::openat(parent, os(name), walk::DIRECTORY, Mode::empty()).map_err(failed("open"))
}

fn look(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>> {
    match fs::statat(parent, os(name), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("stat")(error)),
    }
}

fn link(entry: &Entry) -> &OsStr {
    os(&entry.link)
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> Error {
    move |error| Error::io(operation, error.into())
}
