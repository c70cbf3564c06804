//! Path resolution that never leaves a root directory.
//!
//! Containers own the content of a volume: they may create a symbolic link anywhere, even between a check and the use of what was
//! checked. So nothing here checks a path and uses it later: every step starts from an open directory, and the kernel (`openat2` with
//! `RESOLVE_BENEATH`), or our own walk on old kernels, refuses to leave the root. Symbolic links that stay inside are
//! followed.

mod walk;

use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsFd as _, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{self, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{Error, Result};

/// Attempts of a lookup that fails because of a concurrent rename.
const MAX_ATTEMPTS: usize = 128;

/// An open root directory.
#[derive(Debug)]
pub struct RootDir {
    directory: OwnedFd,
    path: PathBuf,
    beneath: BeneathMode,
}

/// How lookups are kept inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeneathMode {
    /// By the kernel, since Linux 5.6.
    Openat2,
    /// By walking name by name.
    Walk,
}

impl RootDir {
    /// Opens a directory. It must not be a symbolic link: whoever can replace the link could replace the root.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = fs::open(&path, flags, Mode::empty()).map_err(Error::io("open directory", &path))?;
        let mut root = Self { directory, path, beneath: BeneathMode::Openat2 };
        // Old kernels do not have the call, and some sandboxes forbid it.
        if matches!(root.openat2(Path::new("."), OFlags::PATH), Err(Errno::NOSYS | Errno::PERM)) {
            root.beneath = BeneathMode::Walk;
        }
        Ok(root)
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens whatever is at the path with `O_PATH`. The handle stays valid whatever happens to the path, and `/proc/self/fd/N` can
    /// be mounted, as for a `subPath`.
    pub fn handle(&self, path: &str) -> Result<OwnedFd> {
        self.lookup(path, OFlags::PATH)
    }

    /// Reads a regular file of at most `limit` bytes. Never blocks: pipes and devices are rejected.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>> {
        let full = self.path.join(path);
        // Without O_NONBLOCK, opening a pipe would wait for a writer.
        let file = self.lookup(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let metadata = fs::fstat(&file).map_err(Error::io("stat", &full))?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
            return Err(Error::WrongType { path: full, expected: "regular file" });
        }
        let mut content = Vec::new();
        let mut file = File::from(file).take(limit.saturating_add(1));
        file.read_to_end(&mut content).map_err(Error::io("read", &full))?;
        if content.len() as u64 > limit {
            return Err(Error::TooLarge { path: full, limit });
        }
        Ok(content)
    }

    /// Creates a directory and its missing parents; existing ones are unchanged. New directories get exactly this mode, whatever the
    /// umask. Returns a handle like [`RootDir::handle`].
    pub fn create_dirs(&self, path: &str, mode: u32) -> Result<OwnedFd> {
        let names = names(path)?;
        let mut parent = self.directory.try_clone().map_err(Error::io("open directory", &self.path))?;
        let mut made = false;
        let mut walked = PathBuf::new();
        for name in names {
            walked.push(name);
            let full = self.path.join(&walked);
            if !made {
                // Existing components may be links, so they are looked up from the root.
                match self.find(&walked, OFlags::PATH | OFlags::DIRECTORY) {
                    Ok(found) => {
                        parent = found;
                        continue;
                    }
                    Err(Errno::NOENT) => made = true,
                    Err(error) => return Err(self.lookup_error("open directory", &walked, error)),
                }
            }
            // Below a directory that we created there are no links, unless somebody creates one right now: then O_NOFOLLOW
            // fails.
            let name = Path::new(name);
            match fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(self.lookup_error("create directory", &walked, error)),
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let child = fs::openat(&parent, name, flags, Mode::empty())
                .map_err(|error| self.lookup_error("open directory", &walked, error))?;
            fs::fchmod(&child, Mode::from_raw_mode(mode)).map_err(Error::io("change mode of", &full))?;
            parent = child;
        }
        Ok(parent)
    }

    fn lookup(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let clean: PathBuf = names(path)?.into_iter().collect();
        let clean = if clean.as_os_str().is_empty() { Path::new(".") } else { &clean };
        self.find(clean, flags).map_err(|error| self.lookup_error("open", clean, error))
    }

    fn find(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut answer = Err(Errno::AGAIN);
        // During a concurrent rename the kernel cannot tell whether `..` leads out.
        for _ in 0..MAX_ATTEMPTS {
            answer = match self.beneath {
                BeneathMode::Walk => walk::open(self.directory.as_fd(), path, flags),
                BeneathMode::Openat2 => self.openat2(path, flags),
            };
            if !matches!(answer, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        answer
    }

    fn openat2(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    fn lookup_error(&self, operation: &'static str, path: &Path, error: Errno) -> Error {
        match error {
            Errno::XDEV => {
                Error::Outside { root: self.path.clone(), path: path.to_string_lossy().into_owned() }
            }
            error => Error::io(operation, self.path.join(path))(error),
        }
    }
}

/// The components of a relative path. Empty for the root itself.
pub(crate) fn names(path: &str) -> Result<Vec<&str>> {
    let fault = |why| Error::InvalidPath { path: path.to_owned(), why };
    let mut names = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => {
                let name = name.to_str().ok_or_else(|| fault("must be text"))?;
                if name.contains('\0') {
                    return Err(fault("must not contain a zero byte"));
                }
                names.push(name);
            }
            Component::ParentDir => return Err(fault("must not contain '..'")),
            Component::RootDir | Component::Prefix(_) => return Err(fault("must be a relative path")),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
