//! A directory that is never left.
//!
//! The content of a volume belongs to containers: they may put a symbolic link anywhere, also between a check and the use
//! of what was checked. So nothing here checks a path and uses it then; every step is taken from an open directory, and
//! the kernel (`openat2` with `RESOLVE_BENEATH`) or, where it cannot, our own walk refuses to go above the root. Symbolic
//! links that stay inside are followed.

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

/// How often a look-up is tried again that was given up because of a rename beside it.
const ATTEMPTS: usize = 128;

/// An open directory, below which things are found and made.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    path: PathBuf,
    beneath: Beneath,
}

/// Who keeps a look-up inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beneath {
    /// The kernel, since 5.6.
    Kernel,
    /// Our own walk, name by name.
    Walk,
}

impl Root {
    /// Opens a directory. It must not be a symbolic link itself: whoever could replace it could replace the root.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory =
            fs::open(&path, flags, Mode::empty()).map_err(Error::system("open directory", &path))?;
        let mut root = Self { directory, path, beneath: Beneath::Kernel };
        // Old kernels do not know the call, and some sandboxes forbid it.
        if matches!(root.ask_kernel(Path::new("."), OFlags::PATH), Err(Errno::NOSYS | Errno::PERM)) {
            root.beneath = Beneath::Walk;
        }
        Ok(root)
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A handle on whatever is at the path, opened with `O_PATH`: it stays what it is, whatever happens to the path, and
    /// `/proc/self/fd/N` can be mounted. This is how a `subPath` is taken.
    pub fn handle(&self, path: &str) -> Result<OwnedFd> {
        self.lookup(path, OFlags::PATH)
    }

    /// The content of a regular file of at most `limit` bytes. Never waits: a pipe or a device is refused.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>> {
        let full = self.path.join(path);
        // Without O_NONBLOCK the open of a pipe would wait for a writer.
        let file = self.lookup(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let metadata = fs::fstat(&file).map_err(Error::system("look at", &full))?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
            return Err(Error::Unlike { path: full, wanted: "regular file" });
        }
        let mut content = Vec::new();
        let mut file = File::from(file).take(limit.saturating_add(1));
        file.read_to_end(&mut content).map_err(Error::system("read", &full))?;
        if content.len() as u64 > limit {
            return Err(Error::TooLarge { path: full, limit });
        }
        Ok(content)
    }

    /// Makes a directory, and those above it, where they are missing; what is there stays as it is. Those that are made
    /// have exactly this mode, whatever the process' umask is. Answers with a handle as [`Root::handle`] does.
    pub fn create_dirs(&self, path: &str, mode: u32) -> Result<OwnedFd> {
        let names = names(path)?;
        let mut parent = self.directory.try_clone().map_err(Error::system("open directory", &self.path))?;
        let mut made = false;
        let mut walked = PathBuf::new();
        for name in names {
            walked.push(name);
            let full = self.path.join(&walked);
            if !made {
                // As long as things are there they may be links, so they are looked up from the root.
                match self.find(&walked, OFlags::PATH | OFlags::DIRECTORY) {
                    Ok(found) => {
                        parent = found;
                        continue;
                    }
                    Err(Errno::NOENT) => made = true,
                    Err(error) => return Err(self.refusal("open directory", &walked, error)),
                }
            }
            // Below a directory that we made nothing is a link unless somebody is at work there this moment; then the
            // step with O_NOFOLLOW fails.
            let name = Path::new(name);
            match fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(self.refusal("create directory", &walked, error)),
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let child = fs::openat(&parent, name, flags, Mode::empty())
                .map_err(|error| self.refusal("open directory", &walked, error))?;
            fs::fchmod(&child, Mode::from_raw_mode(mode)).map_err(Error::system("change mode of", &full))?;
            parent = child;
        }
        Ok(parent)
    }

    fn lookup(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let clean: PathBuf = names(path)?.into_iter().collect();
        let clean = if clean.as_os_str().is_empty() { Path::new(".") } else { &clean };
        self.find(clean, flags).map_err(|error| self.refusal("open", clean, error))
    }

    fn find(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut answer = Err(Errno::AGAIN);
        // While something is renamed beside it, it cannot be told whether `..` leads out.
        for _ in 0..ATTEMPTS {
            answer = match self.beneath {
                Beneath::Walk => walk::open(self.directory.as_fd(), path, flags),
                Beneath::Kernel => self.ask_kernel(path, flags),
            };
            if !matches!(answer, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        answer
    }

    fn ask_kernel(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    fn refusal(&self, operation: &'static str, path: &Path, error: Errno) -> Error {
        match error {
            Errno::XDEV => {
                Error::Outside { root: self.path.clone(), path: path.to_string_lossy().into_owned() }
            }
            error => Error::system(operation, self.path.join(path))(error),
        }
    }
}

/// The names that a relative path goes through. Empty for the root itself.
pub(crate) fn names(path: &str) -> Result<Vec<&str>> {
    let fault = |why| Error::Path { path: path.to_owned(), why };
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
