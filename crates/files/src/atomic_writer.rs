//! Writes a set of files atomically.
//!
//! The layout is that of the kubelet's AtomicWriter, which programs rely on:
//!
//! ```text
//! VOLUME/..2026_11_15_16_30_00.123456789/   the payload: the files of one version
//! VOLUME/..data -> ..2026_11_15_16_30_00.123456789
//! VOLUME/name   -> ..data/name              one link for each top-level name
//! ```
//!
//! A change writes a new payload directory and replaces the link `..data` by a rename, which is atomic. Readers with the old
//! directory open keep the old files. A crash at any moment leaves the old set or the new one, and the next write removes everything
//! else: it inspects the directory and keeps no state.

mod payload;

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use jiff::{Timestamp, tz::TimeZone};
use rustix::{
    fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use vk_provider::resolve::{File, FileSet};

use crate::{Error, Result, root_dir};

/// The link that is replaced.
const DATA: &str = "..data";
/// The link that replaces it.
const DATA_TMP: &str = "..data_tmp";
/// Directories are readable by all; the files' own modes protect them.
const DIRECTORY_MODE: u32 = 0o755;
/// Additional permissions of the group (`fsGroup`).
const GROUP_FILE_MASK: u32 = 0o440;
const GROUP_DIR_MASK: u32 = 0o2550;

/// Writes sets of files into a directory. There must be only one writer for a directory at a time.
#[derive(Debug)]
pub struct AtomicWriter {
    directory: OwnedFd,
    path: PathBuf,
    group: Option<u32>,
}

/// Called before each change on disk. Tests simulate a crash with it.
type Steps<'a> = &'a mut dyn FnMut() -> Result<()>;

impl AtomicWriter {
    /// Opens a directory, which must exist and not be a symbolic link.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = fs::open(&path, flags, Mode::empty()).map_err(Error::io("open directory", &path))?;
        Ok(Self { directory, path, group: None })
    }

    /// Sets the group of everything written, with read permission: the pod's `fsGroup`. Needs the privilege to do so.
    #[must_use]
    pub fn group(self, group: Option<u32>) -> Self {
        Self { group, ..self }
    }

    /// Makes the directory show this set, with exactly these modes and owners. Returns whether anything was written: an identical set
    /// is left alone. `now` is used only in the name of the payload directory.
    pub fn write(&mut self, set: &FileSet, now: Timestamp) -> Result<bool> {
        let written = self.write_with_steps(set, now, &mut || Ok(()));
        if written.is_err() {
            // The disk may be full of unfinished files. If this fails too, the next write does it.
            let _ = self.remove_old_payloads(&mut || Ok(()));
        }
        written
    }

    fn write_with_steps(&mut self, set: &FileSet, now: Timestamp, step: Steps<'_>) -> Result<bool> {
        let tops = validate(set)?;
        let current = self.current()?;
        let written = !current.as_ref().is_some_and(|name| self.payload_equals(name, set));
        if written {
            let name = self.create_payload_dir(now, current.as_deref(), step)?;
            let directory = self.open_directory(&name)?;
            for (path, file) in &set.files {
                self.write_file(&directory, &name, path, file, step)?;
            }
            self.set_root_mode(step)?;
            self.swap(&name, step)?;
        }
        // Also if nothing was written: the process may have died right after the rename.
        self.create_links(set, &tops, step)?;
        self.remove_stale_links(&tops, step)?;
        self.remove_old_payloads(step)?;
        Ok(written)
    }

    /// The current payload directory.
    fn current(&self) -> Result<Option<String>> {
        match fs::readlinkat(&self.directory, DATA, Vec::new()) {
            Ok(target) => Ok(target.into_string().ok().filter(|name| is_payload_dir(name))),
            // Not created by us: the rename replaces it, or fails with the reason.
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.failed("read link", DATA, error)),
        }
    }

    /// Whether a payload directory holds exactly this set. An unreadable one does not.
    fn payload_equals(&self, name: &str, set: &FileSet) -> bool {
        let Ok(found) =
            self.open_directory(name).and_then(|directory| payload::read(&directory, Path::new(name)))
        else {
            return false;
        };
        found.len() == set.files.len()
            && found.iter().zip(&set.files).all(|((path, found), (expected, file))| {
                path == expected
                    && found.content == file.content
                    && found.mode == self.mode(file)
                    && file.owner.is_none_or(|owner| found.owner == owner)
                    && self.group.is_none_or(|group| found.group == group)
            })
    }

    fn mode(&self, file: &File) -> u32 {
        let mode = file.mode & 0o777;
        if self.group.is_some() { mode | GROUP_FILE_MASK } else { mode }
    }

    /// Creates a payload directory with a new name, even if the clock does not advance: a reader that has resolved the link may find the
    /// directory gone, but never another set under its name.
    fn create_payload_dir(&self, now: Timestamp, current: Option<&str>, step: Steps<'_>) -> Result<String> {
        let time = now.to_zoned(TimeZone::UTC).strftime("..%Y_%m_%d_%H_%M_%S.").to_string();
        let last = current.and_then(|name| name.strip_prefix(&time)?.parse::<u64>().ok());
        let number = u64::from(now.subsec_nanosecond().unsigned_abs());
        let mut number = last.map_or(number, |last| number.max(last.saturating_add(1)));
        loop {
            let name = format!("{time}{number:09}");
            step()?;
            match fs::mkdirat(&self.directory, name.as_str(), Mode::from_raw_mode(0o700)) {
                Ok(()) => {
                    step()?;
                    self.set_directory_mode(&self.open_directory(&name)?, &name)?;
                    return Ok(name);
                }
                // The clock was set back, or is coarse.
                Err(Errno::EXIST) => number += 1,
                Err(error) => return Err(self.failed("create directory", &name, error)),
            }
        }
    }

    fn write_file(
        &self,
        directory: &OwnedFd,
        name: &str,
        path: &str,
        file: &File,
        step: Steps<'_>,
    ) -> Result<()> {
        let names = root_dir::names(path)?;
        let (last, above) = names.split_last().ok_or_else(|| invalid(path, "must name a file"))?;
        let mut parent = directory.try_clone().map_err(Error::io("open directory", self.path.join(name)))?;
        let mut walked = PathBuf::from(name);
        for above in above {
            walked.push(above);
            let failed = |error| self.failed("create directory", &walked, error);
            step()?;
            let made = match fs::mkdirat(&parent, *above, Mode::from_raw_mode(0o700)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(failed(error)),
            };
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            parent = fs::openat(&parent, *above, flags, Mode::empty()).map_err(failed)?;
            if made {
                step()?;
                self.set_directory_mode(&parent, &walked)?;
            }
        }
        walked.push(last);
        step()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = fs::openat(&parent, *last, flags, Mode::from_raw_mode(0o600))
            .map_err(|error| self.failed("create file", &walked, error))?;
        step()?;
        let mut opened = std::fs::File::from(opened);
        std::io::Write::write_all(&mut opened, &file.content)
            .map_err(Error::io("write", self.path.join(&walked)))?;
        step()?;
        self.chown(&opened, file.owner, &walked)?;
        // After chown, which may clear bits. The mode of the open would be restricted by the umask.
        fs::fchmod(&opened, Mode::from_raw_mode(self.mode(file)))
            .map_err(|error| self.failed("change mode of", &walked, error))
    }

    /// Sets the mode of a directory, and its group if there is one.
    fn set_directory_mode(&self, directory: &OwnedFd, name: impl AsRef<Path>) -> Result<()> {
        let name = name.as_ref();
        self.chown(directory, None, name)?;
        let mode = if self.group.is_some() { DIRECTORY_MODE | GROUP_DIR_MASK } else { DIRECTORY_MODE };
        fs::fchmod(directory, Mode::from_raw_mode(mode))
            .map_err(|error| self.failed("change mode of", name, error))
    }

    /// Sets the group of the volume itself, and keeps its other permissions.
    fn set_root_mode(&self, step: Steps<'_>) -> Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        let failed = |error| self.failed("change mode of", "", error);
        let stat = fs::fstat(&self.directory).map_err(failed)?;
        let mode = stat.st_mode & 0o7777;
        if stat.st_gid != group || mode & GROUP_DIR_MASK != GROUP_DIR_MASK {
            step()?;
            self.chown(&self.directory, None, Path::new(""))?;
            fs::fchmod(&self.directory, Mode::from_raw_mode(mode | GROUP_DIR_MASK)).map_err(failed)?;
        }
        Ok(())
    }

    fn chown(&self, file: impl std::os::fd::AsFd, owner: Option<u32>, name: &Path) -> Result<()> {
        if owner.is_none() && self.group.is_none() {
            return Ok(());
        }
        fs::fchown(file, owner.map(Uid::from_raw), self.group.map(Gid::from_raw))
            .map_err(|error| self.failed("change owner of", name, error))
    }

    fn swap(&self, name: &str, step: Steps<'_>) -> Result<()> {
        // One may be left over from a crash.
        remove(&self.directory, DATA_TMP).map_err(|error| self.failed("remove", DATA_TMP, error))?;
        step()?;
        fs::symlinkat(name, &self.directory, DATA_TMP)
            .map_err(|error| self.failed("create link", DATA_TMP, error))?;
        step()?;
        fs::renameat(&self.directory, DATA_TMP, &self.directory, DATA)
            .map_err(|error| self.failed("rename", DATA_TMP, error))
    }

    /// Creates a link for each top-level name. An existing entry is kept: it may be the mount point of another volume.
    fn create_links(&self, set: &FileSet, tops: &BTreeSet<&str>, step: Steps<'_>) -> Result<()> {
        for top in tops {
            if fs::statat(&self.directory, *top, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                continue;
            }
            step()?;
            match fs::symlinkat(format!("{DATA}/{top}"), &self.directory, *top) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(self.failed("create link", top, error)),
            }
            if let Some(owner) = set.files.get(*top).and_then(|file| file.owner) {
                step()?;
                fs::chownat(
                    &self.directory,
                    *top,
                    Some(Uid::from_raw(owner)),
                    None,
                    AtFlags::SYMLINK_NOFOLLOW,
                )
                .map_err(|error| self.failed("change owner of", top, error))?;
            }
        }
        Ok(())
    }

    /// Removes our links that lead nowhere now.
    fn remove_stale_links(&self, tops: &BTreeSet<&str>, step: Steps<'_>) -> Result<()> {
        for (name, kind) in self.entries()? {
            if kind != FileType::Symlink || tops.contains(name.as_str()) || name.starts_with("..") {
                continue;
            }
            let target = fs::readlinkat(&self.directory, name.as_str(), Vec::new());
            if target.is_ok_and(|target| target.as_bytes() == format!("{DATA}/{name}").as_bytes()) {
                step()?;
                remove(&self.directory, &name).map_err(|error| self.failed("remove", &name, error))?;
            }
        }
        Ok(())
    }

    /// Removes payload directories that are not current, and a leftover temporary link.
    fn remove_old_payloads(&self, step: Steps<'_>) -> Result<()> {
        let current = self.current()?;
        for (name, kind) in self.entries()? {
            let old = kind == FileType::Directory && is_payload_dir(&name) && Some(&name) != current.as_ref();
            if old {
                step()?;
                payload::remove(self.directory.as_fd(), &name)
                    .map_err(|error| self.failed("remove", &name, error))?;
            } else if name == DATA_TMP {
                step()?;
                remove(&self.directory, DATA_TMP).map_err(|error| self.failed("remove", DATA_TMP, error))?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<(String, FileType)>> {
        payload::entries(self.directory.as_fd()).map_err(|error| self.failed("list directory", "", error))
    }

    fn open_directory(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.directory, name, flags, Mode::empty())
            .map_err(|error| self.failed("open directory", name, error))
    }

    fn failed(&self, operation: &'static str, name: impl AsRef<Path>, error: Errno) -> Error {
        Error::io(operation, self.path.join(name))(error)
    }
}

fn remove(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        answer => answer,
    }
}

fn invalid(path: &str, why: &'static str) -> Error {
    Error::InvalidPath { path: path.to_owned(), why }
}

/// Whether a name is that of a payload directory: `..2026_11_15_16_30_00.` and a number.
fn is_payload_dir(name: &str) -> bool {
    let Some((time, number)) = name.strip_prefix("..").and_then(|name| name.split_once('.')) else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    time.split('_').count() == 6 && time.split('_').all(digits) && digits(number)
}

/// Checks that every path stays inside and does not collide with our own names. Returns the top-level names.
fn validate(set: &FileSet) -> Result<BTreeSet<&str>> {
    let mut tops = BTreeSet::new();
    for path in set.files.keys() {
        let names = root_dir::names(path)?;
        let top = *names.first().ok_or_else(|| invalid(path, "must name a file"))?;
        if top.starts_with("..") {
            return Err(invalid(path, "must not start with '..'"));
        }
        if names.iter().map(|name| name.len() + 1).sum::<usize>() != path.len() + 1 {
            return Err(invalid(path, "must have no '.' and no doubled slash"));
        }
        tops.insert(top);
    }
    Ok(tops)
}

#[cfg(test)]
mod tests;
