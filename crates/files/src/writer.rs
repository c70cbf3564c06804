//! A set of files that changes as one.
//!
//! The layout is that of the kubelet's AtomicWriter, which programs rely on:
//!
//! ```text
//! VOLUME/..2026_11_15_16_30_00.123456789/   the files of one moment
//! VOLUME/..data -> ..2026_11_15_16_30_00.123456789
//! VOLUME/name   -> ..data/name              one link for each name at the top
//! ```
//!
//! A change writes a new directory and swaps the link `..data` by a rename, which is one step. Whoever has the old
//! directory open keeps the old files. A process that dies at any moment leaves the old set or the new one, and whatever
//! else it left is cleared by the next write: the directory itself is looked at, nothing is remembered.

mod tree;

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

use crate::{Error, Result, root};

/// The link that is swapped.
const DATA: &str = "..data";
/// The link that takes its place.
const NEW_DATA: &str = "..data_tmp";
/// Everybody may look around; what may be read, the files say.
const DIRECTORY_MODE: u32 = 0o755;
/// What a group (`fsGroup`) gets on files and directories beyond their mode.
const GROUP_READS: u32 = 0o440;
const GROUP_ENTERS: u32 = 0o2550;

/// Writes sets of files into one directory. One writer at a time: whoever has two for a directory must see to that.
#[derive(Debug)]
pub struct Writer {
    directory: OwnedFd,
    path: PathBuf,
    group: Option<u32>,
}

/// A step that changes something on the disk. Tests stop at each of them, as a crash would.
type Steps<'a> = &'a mut dyn FnMut() -> Result<()>;

impl Writer {
    /// A writer for a directory, which must be there and be no symbolic link.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory =
            fs::open(&path, flags, Mode::empty()).map_err(Error::system("open directory", &path))?;
        Ok(Self { directory, path, group: None })
    }

    /// Gives everything to a group, which may then read it: the pod's `fsGroup`. Needs the right to do so.
    #[must_use]
    pub fn group(self, group: Option<u32>) -> Self {
        Self { group, ..self }
    }

    /// Makes the directory show this set, with exactly these modes and owners. Answers whether anything had to be
    /// written: a set that is there already is left alone. `now` goes into the name of the directory only.
    pub fn write(&mut self, set: &FileSet, now: Timestamp) -> Result<bool> {
        let written = self.write_stepwise(set, now, &mut || Ok(()));
        if written.is_err() {
            // The disk may be full of what we could not finish. If this fails too, the next write does it.
            let _ = self.sweep(&mut || Ok(()));
        }
        written
    }

    fn write_stepwise(&mut self, set: &FileSet, now: Timestamp, step: Steps<'_>) -> Result<bool> {
        let tops = check(set)?;
        let current = self.current()?;
        let written = !current.as_ref().is_some_and(|name| self.holds(name, set));
        if written {
            let name = self.make_directory(now, current.as_deref(), step)?;
            let directory = self.open_directory(&name)?;
            for (path, file) in &set.files {
                self.write_file(&directory, &name, path, file, step)?;
            }
            self.give_root(step)?;
            self.swap(&name, step)?;
        }
        // Also where nothing was written: the process may have died right after the swap.
        self.link(set, &tops, step)?;
        self.unlink(&tops, step)?;
        self.sweep(step)?;
        Ok(written)
    }

    /// The directory of the set that is shown now.
    fn current(&self) -> Result<Option<String>> {
        match fs::readlinkat(&self.directory, DATA, Vec::new()) {
            Ok(target) => Ok(target.into_string().ok().filter(|name| is_ours(name))),
            // Something that we did not make: the rename takes its place, or says why it cannot.
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.failed("read link", DATA, error)),
        }
    }

    /// Whether a directory holds exactly this set. What cannot be read is not it.
    fn holds(&self, name: &str, set: &FileSet) -> bool {
        let Ok(found) =
            self.open_directory(name).and_then(|directory| tree::read(&directory, Path::new(name)))
        else {
            return false;
        };
        found.len() == set.files.len()
            && found.iter().zip(&set.files).all(|((path, found), (wanted, file))| {
                path == wanted
                    && found.content == file.content
                    && found.mode == self.mode(file)
                    && file.owner.is_none_or(|owner| found.owner == owner)
                    && self.group.is_none_or(|group| found.group == group)
            })
    }

    fn mode(&self, file: &File) -> u32 {
        let mode = file.mode & 0o777;
        if self.group.is_some() { mode | GROUP_READS } else { mode }
    }

    /// Makes a directory whose name was not there before, also where the clock stands still: a reader who has read the
    /// link may find the directory gone, but never another set under its name.
    fn make_directory(&self, now: Timestamp, current: Option<&str>, step: Steps<'_>) -> Result<String> {
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
                    self.give_directory(&self.open_directory(&name)?, &name)?;
                    return Ok(name);
                }
                // A clock that was set back, or one that is coarse.
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
        let names = root::names(path)?;
        let (last, above) = names.split_last().ok_or_else(|| invalid(path, "must name a file"))?;
        let mut parent =
            directory.try_clone().map_err(Error::system("open directory", self.path.join(name)))?;
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
                self.give_directory(&parent, &walked)?;
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
            .map_err(Error::system("write", self.path.join(&walked)))?;
        step()?;
        self.chown(&opened, file.owner, &walked)?;
        // Once it is owned: a change of the owner may take bits away. And not by the open, which the umask cuts.
        fs::fchmod(&opened, Mode::from_raw_mode(self.mode(file)))
            .map_err(|error| self.failed("change mode of", &walked, error))
    }

    /// A directory of ours with its mode, and with its group where there is one.
    fn give_directory(&self, directory: &OwnedFd, name: impl AsRef<Path>) -> Result<()> {
        let name = name.as_ref();
        self.chown(directory, None, name)?;
        let mode = if self.group.is_some() { DIRECTORY_MODE | GROUP_ENTERS } else { DIRECTORY_MODE };
        fs::fchmod(directory, Mode::from_raw_mode(mode))
            .map_err(|error| self.failed("change mode of", name, error))
    }

    /// The volume itself is given to the group too, and keeps what else it allows.
    fn give_root(&self, step: Steps<'_>) -> Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        let failed = |error| self.failed("change mode of", "", error);
        let stat = fs::fstat(&self.directory).map_err(failed)?;
        let mode = stat.st_mode & 0o7777;
        if stat.st_gid != group || mode & GROUP_ENTERS != GROUP_ENTERS {
            step()?;
            self.chown(&self.directory, None, Path::new(""))?;
            fs::fchmod(&self.directory, Mode::from_raw_mode(mode | GROUP_ENTERS)).map_err(failed)?;
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
        // One may have stayed behind.
        remove(&self.directory, NEW_DATA).map_err(|error| self.failed("remove", NEW_DATA, error))?;
        step()?;
        fs::symlinkat(name, &self.directory, NEW_DATA)
            .map_err(|error| self.failed("create link", NEW_DATA, error))?;
        step()?;
        fs::renameat(&self.directory, NEW_DATA, &self.directory, DATA)
            .map_err(|error| self.failed("rename", NEW_DATA, error))
    }

    /// One link for each name at the top. What has such a name already stays: it may be the mount point of another volume.
    fn link(&self, set: &FileSet, tops: &BTreeSet<&str>, step: Steps<'_>) -> Result<()> {
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

    /// Links that we made and that lead nowhere now.
    fn unlink(&self, tops: &BTreeSet<&str>, step: Steps<'_>) -> Result<()> {
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

    /// Directories of sets that are not shown, and a link that was not renamed.
    fn sweep(&self, step: Steps<'_>) -> Result<()> {
        let current = self.current()?;
        for (name, kind) in self.entries()? {
            let old = kind == FileType::Directory && is_ours(&name) && Some(&name) != current.as_ref();
            if old {
                step()?;
                tree::remove(self.directory.as_fd(), &name)
                    .map_err(|error| self.failed("remove", &name, error))?;
            } else if name == NEW_DATA {
                step()?;
                remove(&self.directory, NEW_DATA).map_err(|error| self.failed("remove", NEW_DATA, error))?;
            }
        }
        Ok(())
    }

    fn entries(&self) -> Result<Vec<(String, FileType)>> {
        tree::entries(self.directory.as_fd()).map_err(|error| self.failed("list directory", "", error))
    }

    fn open_directory(&self, name: &str) -> Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&self.directory, name, flags, Mode::empty())
            .map_err(|error| self.failed("open directory", name, error))
    }

    fn failed(&self, operation: &'static str, name: impl AsRef<Path>, error: Errno) -> Error {
        Error::system(operation, self.path.join(name))(error)
    }
}

fn remove(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        answer => answer,
    }
}

fn invalid(path: &str, why: &'static str) -> Error {
    Error::Path { path: path.to_owned(), why }
}

/// Whether a name is that of a directory of ours: `..2026_11_15_16_30_00.` and a number.
fn is_ours(name: &str) -> bool {
    let Some((time, number)) = name.strip_prefix("..").and_then(|name| name.split_once('.')) else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    time.split('_').count() == 6 && time.split('_').all(digits) && digits(number)
}

/// The names at the top, once it is sure that every path stays inside and clear of our own names.
fn check(set: &FileSet) -> Result<BTreeSet<&str>> {
    let mut tops = BTreeSet::new();
    for path in set.files.keys() {
        let names = root::names(path)?;
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
