//! Resolves paths inside a layer, name by name.

use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use super::{is_whiteout, os};
use crate::image::{Error, Result};

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Maximum number of links to follow, as in the kernel.
const MAX_LINKS: usize = 40;
/// Maximum depth. All directories of a path are open during its resolution.
const MAX_DEPTH: usize = 256;

/// Finds directories below a root. Caches the last one, because the entries of a directory come together.
pub(super) struct PathResolver {
    root: Arc<OwnedFd>,
    last: Option<(Vec<u8>, FoundDirectory)>,
}

/// A directory that was found.
#[derive(Clone)]
pub(super) struct FoundDirectory {
    pub(super) directory: Arc<OwnedFd>,
    /// Its path without links.
    path: Vec<u8>,
}

// === impl PathResolver ===

impl PathResolver {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root: Arc::new(root), last: None }
    }

    pub(super) fn root(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.root)
    }

    /// Clears the cache.
    pub(super) fn clear_cache(&mut self) {
        self.last = None;
    }

    /// The directory at a path, without following links.
    pub(super) fn without_links(&self, path: &[u8]) -> Option<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        fs::openat2(&*self.root, os(path), DIRECTORY, Mode::empty(), inside()).ok().or_else(|| {
            // For kernels without openat2.
            let mut here = fs::openat(&*self.root, ".", DIRECTORY, Mode::empty()).ok()?;
            for name in path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"." | b"")) {
                here = fs::openat(&here, os(name), DIRECTORY, Mode::empty()).ok()?;
            }
            Some(here)
        })
    }

    /// The directory at a path. Links are followed, absolute ones from the root; links that leave the root are errors.
    /// Missing directories, and those hidden by a whiteout, are created by `make`.
    pub(super) fn find(
        &mut self,
        names: &[&[u8]],
        mut make: impl FnMut(BorrowedFd<'_>, &[u8], &[u8]) -> Result<OwnedFd>,
    ) -> Result<FoundDirectory> {
        let asked = names.join(&b'/');
        if let Some((_, found)) = self.last.as_ref().filter(|(path, _)| *path == asked) {
            return Ok(found.clone());
        }
        let flags = DIRECTORY;
        let found = match fs::openat2(&*self.root, os(non_empty(&asked)), flags, Mode::empty(), inside()) {
            Ok(directory) => FoundDirectory { directory: Arc::new(directory), path: asked.clone() },
            // A link, a missing directory, or an old kernel.
            Err(_) => self.resolve(names, &mut make)?,
        };
        self.last = Some((asked, found.clone()));
        Ok(found)
    }

    fn resolve(
        &self,
        names: &[&[u8]],
        make: &mut impl FnMut(BorrowedFd<'_>, &[u8], &[u8]) -> Result<OwnedFd>,
    ) -> Result<FoundDirectory> {
        let mut ahead: VecDeque<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        let mut trail: Vec<(Vec<u8>, Arc<OwnedFd>)> = Vec::new();
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == b".." {
                if trail.pop().is_none() {
                    return Err(Error::corrupt("a link in its path leaves the layer"));
                }
                continue;
            }
            if trail.len() >= MAX_DEPTH {
                return Err(Error::corrupt(format!("more than {MAX_DEPTH} nested directories")));
            }
            let here = trail.last().map_or(&self.root, |(_, directory)| directory);
            let next = match fs::openat(&**here, os(&name), DIRECTORY, Mode::empty()) {
                Ok(directory) => directory,
                Err(Errno::NOENT) => make(here.as_fd(), &name, &join_path(&trail, &name))?,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let stat = fs::statat(&**here, os(&name), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(|error| Error::io("stat", error.into()))?;
                    if is_whiteout(&stat) {
                        make(here.as_fd(), &name, &join_path(&trail, &name))?
                    } else if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(Error::corrupt("too many links in its path"));
                        }
                        let target = fs::readlinkat(&**here, os(&name), Vec::new())
                            .map_err(|error| Error::io("readlink", error.into()))?;
                        let target = target.as_bytes();
                        if target.starts_with(b"/") {
                            trail.clear();
                        }
                        for part in target.split(|&byte| byte == b'/').rev() {
                            if !matches!(part, b"" | b".") {
                                ahead.push_front(part.to_vec());
                            }
                        }
                        continue;
                    } else {
                        let shown = String::from_utf8_lossy(&name).into_owned();
                        return Err(Error::corrupt(format!("{shown} in its path is not a directory")));
                    }
                }
                Err(error) => return Err(Error::io("open", error.into())),
            };
            trail.push((name, Arc::new(next)));
        }
        let path = trail.iter().map(|(name, _)| name.as_slice()).collect::<Vec<_>>().join(&b'/');
        let directory = trail.pop().map_or_else(|| Arc::clone(&self.root), |(_, directory)| directory);
        Ok(FoundDirectory { directory, path })
    }
}

// === impl FoundDirectory ===

impl FoundDirectory {
    /// The path of an entry in the directory.
    pub(super) fn child(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() { name.to_vec() } else { [&self.path, name].join(&b'/') }
    }
}

fn join_path(trail: &[(Vec<u8>, Arc<OwnedFd>)], name: &[u8]) -> Vec<u8> {
    trail.iter().map(|(name, _)| name.as_slice()).chain([name]).collect::<Vec<_>>().join(&b'/')
}

/// The names of a path in an archive, from the root of the layer.
pub(super) fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let mut names = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(Error::corrupt("'..' in its path, which could leave the layer")),
            name if name.len() > 255 => {
                return Err(Error::corrupt(format!("a name of {} bytes", name.len())));
            }
            name => names.push(name),
        }
    }
    if names.len() > MAX_DEPTH {
        return Err(Error::corrupt(format!("more than {MAX_DEPTH} nested directories")));
    }
    Ok(names)
}

fn inside() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

fn non_empty(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}
