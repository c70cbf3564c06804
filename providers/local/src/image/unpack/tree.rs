//! The directory of a layer. Every step starts from an open directory, and links are only followed by our own code.

mod directories;
mod path_resolver;

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufRead, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{
        self, AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, makedev,
    },
    io::Errno,
};

use self::{
    directories::Directories,
    path_resolver::{FoundDirectory, PathResolver},
};
use super::{
    DiskUsage, ImageLimits, LayerFormat,
    tar_reader::{EntryKind, TarEntry, TarReader},
};
use crate::image::{Error, Result};

/// Prefix of a whiteout file, which hides a file of the layers below.
pub(crate) const WHITEOUT: &[u8] = b".wh.";
/// The file that hides everything of the layers below in its directory.
pub(crate) const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
/// The overlayfs attribute with the same meaning.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";
/// Files that aufs kept in layers.
const AUFS_PREFIX: &[u8] = b".wh..wh.";

/// The directory of a layer that is being unpacked.
pub(super) struct LayerTree {
    resolver: PathResolver,
    layer_format: LayerFormat,
    usage: DiskUsage,
    directories: Directories,
}

// === impl LayerTree ===

impl LayerTree {
    pub(super) fn open(path: &Path, layer_format: LayerFormat, limits: &ImageLimits) -> Result<Self> {
        let root =
            fs::open(path, path_resolver::DIRECTORY, Mode::empty()).map_err(Error::system("open", path))?;
        Ok(Self {
            resolver: PathResolver::new(root),
            layer_format,
            usage: DiskUsage::default(),
            directories: Directories::new(limits.directory_bytes)?,
        })
    }

    /// Applies an entry.
    pub(super) fn apply<R: BufRead>(&mut self, entry: &TarEntry, tar: &mut TarReader<R>) -> Result<()> {
        let shown = String::from_utf8_lossy(&entry.path).into_owned();
        self.entry(entry, tar).map_err(|error| error.within(&shown))
    }

    fn entry<R: BufRead>(&mut self, entry: &TarEntry, tar: &mut TarReader<R>) -> Result<()> {
        let names = path_resolver::names(&entry.path)?;
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
            EntryKind::Directory => return self.directory(parent, name, child, entry),
            EntryKind::File => self.file(parent, name, entry, tar)?,
            EntryKind::Symlink => {
                self.create_replacing(parent, name, |name| fs::symlinkat(link(entry), parent, name))?;
            }
            EntryKind::HardLink => return self.hard_link(parent, name, entry),
            EntryKind::Fifo => self.create_replacing(parent, name, |name| {
                fs::mknodat(parent, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            })?,
            EntryKind::Device => {
                return Err(Error::corrupt(
                    "a device node, which images must not contain: pods get devices from the node",
                ));
            }
        }
        self.usage.inodes += 1;
        if entry.kind != EntryKind::File {
            self.owner_at(parent, name, entry)?;
            if entry.kind == EntryKind::Fifo {
                fs::chmodat(parent, os(name), Mode::from_raw_mode(entry.mode), AtFlags::empty())
                    .map_err(failed("chmod"))?;
            }
            fs::utimensat(parent, os(name), &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("utimes"))?;
        }
        Ok(())
    }

    /// Sets the times of directories; returns the disk usage, and the directories without an entry, parents first.
    pub(super) fn finish(self) -> Result<(DiskUsage, Vec<Vec<u8>>)> {
        for (path, time) in self.directories.times() {
            // A path that is no longer a directory has its time already.
            if let Some(directory) = self.resolver.without_links(path) {
                fs::futimens(&directory, &times(*time)).map_err(failed("utimes"))?;
            }
        }
        Ok((self.usage, self.directories.into_implied()))
    }

    fn root(&mut self, entry: &TarEntry) -> Result<()> {
        if entry.kind != EntryKind::Directory {
            return Err(Error::corrupt("the root of a layer must be a directory"));
        }
        let root = self.resolver.root();
        self.directories.add_entry(Vec::new(), entry.mtime)?;
        self.set_metadata(root.as_fd(), entry)
    }

    fn parent(&mut self, names: &[&[u8]], create_replacing: bool) -> Result<FoundDirectory> {
        let (layer_format, directories) = (self.layer_format, &mut self.directories);
        let inodes = &mut self.usage.inodes;
        self.resolver.find(names, |directory, name, path| {
            if !create_replacing {
                return Err(Error::corrupt("not in the layer"));
            }
            match fs::mkdirat(directory, os(name), Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                // A whiteout: the new directory must not show what it hid.
                Err(Errno::EXIST) => {
                    fs::unlinkat(directory, os(name), AtFlags::empty()).map_err(failed("unlink"))?;
                    fs::mkdirat(directory, os(name), Mode::from_raw_mode(0o755)).map_err(failed("mkdir"))?;
                    let made = open(directory, name)?;
                    make_opaque(made.as_fd(), layer_format)?;
                }
                Err(error) => return Err(failed("mkdir")(error)),
            }
            *inodes += 1;
            directories.add_implied(path)?;
            // Regardless of the umask.
            let made = open(directory, name)?;
            fs::fchmod(&made, Mode::from_raw_mode(0o755)).map_err(failed("chmod"))?;
            Ok(made)
        })
    }

    fn whiteout(&mut self, found: &FoundDirectory, name: &[u8]) -> Result<()> {
        let parent = found.directory.as_fd();
        if name == OPAQUE_MARKER {
            return make_opaque(parent, self.layer_format);
        }
        if name.starts_with(AUFS_PREFIX) {
            return Ok(());
        }
        let gone = &name[WHITEOUT.len()..];
        if matches!(gone, b"" | b"." | b"..") {
            return Err(Error::corrupt("a whiteout without a name"));
        }
        if self.layer_format == LayerFormat::Plain {
            return self.create_replacing(parent, name, |name| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                fs::openat(parent, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600)).map(drop)
            });
        }
        // It hides files of the layers below, not of its own layer.
        match stat_at(parent, gone)? {
            Some(stat) if is_directory(&stat) => make_opaque(open(parent, gone)?.as_fd(), self.layer_format),
            Some(_) => Ok(()),
            None => {
                self.usage.inodes += 1;
                let mode = Mode::empty();
                fs::mknodat(parent, os(gone), FileType::CharacterDevice, mode, makedev(0, 0))
                    .map_err(failed("mknod"))
            }
        }
    }

    fn directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: Vec<u8>,
        entry: &TarEntry,
    ) -> Result<()> {
        let mode = Mode::from_raw_mode(0o700);
        match fs::mkdirat(parent, os(name), mode) {
            Ok(()) => self.usage.inodes += 1,
            Err(Errno::EXIST) => match stat_at(parent, name)? {
                Some(stat) if is_directory(&stat) => {}
                there => {
                    self.clear(parent, name)?;
                    fs::mkdirat(parent, os(name), mode).map_err(failed("mkdir"))?;
                    self.usage.inodes += 1;
                    if there.is_some_and(|there| is_whiteout(&there)) {
                        make_opaque(open(parent, name)?.as_fd(), self.layer_format)?;
                    }
                }
            },
            Err(error) => return Err(failed("mkdir")(error)),
        }
        let directory = open(parent, name)?;
        self.set_metadata(directory.as_fd(), entry)?;
        self.directories.add_entry(path, entry.mtime)
    }

    fn file<R: BufRead>(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        entry: &TarEntry,
        tar: &mut TarReader<R>,
    ) -> Result<()> {
        let mut made = None;
        self.create_replacing(parent, name, |name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            made = Some(fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
            Ok(())
        })?;
        let Some(file) = made else { return Ok(()) };
        let mut file = File::from(file);
        tar.contents(|bytes| file.write_all(bytes))?;
        self.usage.bytes += entry.size;
        self.set_metadata(file.as_fd(), entry)?;
        fs::futimens(&file, &times(entry.mtime)).map_err(failed("utimes"))
    }

    fn hard_link(&mut self, parent: BorrowedFd<'_>, name: &[u8], entry: &TarEntry) -> Result<()> {
        let target = String::from_utf8_lossy(&entry.link).into_owned();
        let refused = |error: Error| error.within(&format!("hard link to {target}"));
        let names = path_resolver::names(&entry.link).map_err(refused)?;
        let Some((&last, parents)) = names.split_last() else {
            return Err(refused(Error::corrupt("a directory cannot be hard-linked")));
        };
        let from = self.parent(parents, false).map_err(refused)?;
        let there = stat_at(from.directory.as_fd(), last).map_err(refused)?;
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
        if stat_at(parent, name)?.zip(there).is_some_and(|(a, b)| a.st_ino == b.st_ino) {
            return Ok(());
        }
        self.create_replacing(parent, name, |name| {
            fs::linkat(&from.directory, os(last), parent, name, AtFlags::empty())
        })
        .map_err(refused)
    }

    /// Creates something, replacing what exists.
    fn create_replacing(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        mut create_replacing: impl FnMut(&OsStr) -> Result<(), Errno>,
    ) -> Result<()> {
        match create_replacing(os(name)) {
            Err(Errno::EXIST) => {
                self.clear(parent, name)?;
                create_replacing(os(name)).map_err(failed("create"))
            }
            answer => answer.map_err(failed("create")),
        }
    }

    fn clear(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        // Cached paths may lead through it.
        self.resolver.clear_cache();
        remove_at(parent, os(name)).map_err(failed("remove"))
    }

    /// Sets owner, mode and attributes.
    fn set_metadata(&self, file: BorrowedFd<'_>, entry: &TarEntry) -> Result<()> {
        let mut mode = entry.mode;
        if self.layer_format == LayerFormat::Overlay {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            fs::fchown(file, Some(uid), Some(gid)).map_err(failed("chown"))?;
        } else if entry.kind == EntryKind::Directory {
            // Always readable, writable and removable by us.
            mode |= 0o700;
        } else {
            // Setuid programs would run as us for any user.
            mode &= 0o777;
        }
        // After the owner, because changing it clears these bits.
        fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed("chmod"))?;
        for (name, value) in &entry.xattrs {
            if !self.is_allowed_xattr(name) {
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

    fn owner_at(&self, parent: BorrowedFd<'_>, name: &[u8], entry: &TarEntry) -> Result<()> {
        if self.layer_format == LayerFormat::Plain {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        fs::chownat(parent, os(name), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("chown"))
    }

    /// Whether an image may set this extended attribute. Those of overlayfs would change what other layers show.
    fn is_allowed_xattr(&self, name: &[u8]) -> bool {
        let users = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
        users
            || (self.layer_format == LayerFormat::Overlay
                && matches!(
                    name,
                    b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default"
                ))
    }
}

/// Copies the attributes of directories without an entry from the layers below, the nearest first. Otherwise the layer
/// would change them to defaults. Children come first, because changing them changes the time of the parent.
pub(crate) fn inherit_attributes(
    layer: &Path,
    implied: impl Iterator<Item = io::Result<Vec<u8>>>,
    below: &[impl AsRef<Path>],
    layer_format: LayerFormat,
) -> Result<()> {
    if below.is_empty() {
        return Ok(());
    }
    let resolver = |path: &Path| {
        fs::open(path, path_resolver::DIRECTORY, Mode::empty())
            .map(PathResolver::new)
            .map_err(Error::system("open", path))
    };
    let layer = resolver(layer)?;
    let below = below.iter().rev().map(|path| resolver(path.as_ref())).collect::<Result<Vec<_>>>()?;
    for path in implied {
        let path = path.map_err(|error| Error::io("read the directories of the layer", error))?;
        let Some(directory) = layer.without_links(&path) else { continue };
        let Some(model) = below.iter().find_map(|layer| layer.without_links(&path)) else { continue };
        let stat = fs::fstat(&model).map_err(failed("stat"))?;
        if layer_format == LayerFormat::Overlay {
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            fs::fchown(&directory, Some(uid), Some(gid)).map_err(failed("chown"))?;
        }
        fs::fchmod(&directory, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(failed("chmod"))?;
        let nanos = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        fs::futimens(&directory, &times((stat.st_mtime, nanos))).map_err(failed("utimes"))?;
    }
    Ok(())
}

/// Removes a file or directory tree, never following links. It may not exist.
pub(crate) fn remove_at(parent: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    let parent = parent.as_fd();
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let directory = match fs::openat(parent, name, path_resolver::DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut entries = Dir::read_from(&directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            remove_at(&directory, os(name.to_bytes()))?;
        }
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether this is an overlayfs whiteout.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Makes a directory hide everything of the layers below.
fn make_opaque(directory: BorrowedFd<'_>, layer_format: LayerFormat) -> Result<()> {
    match layer_format {
        LayerFormat::Overlay => {
            fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty()).map_err(failed("setxattr"))
        }
        LayerFormat::Plain => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            fs::openat(directory, os(OPAQUE_MARKER), flags, Mode::from_raw_mode(0o600))
                .map(drop)
                .map_err(failed("create"))
        }
    }
}

fn open(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    fs::openat(parent, os(name), path_resolver::DIRECTORY, Mode::empty()).map_err(failed("open"))
}

fn stat_at(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>> {
    match fs::statat(parent, os(name), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("stat")(error)),
    }
}

fn link(entry: &TarEntry) -> &OsStr {
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
