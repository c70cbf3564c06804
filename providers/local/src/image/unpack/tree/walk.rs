//! The way to a directory inside a layer, name by name.

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

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;
/// As deep as directories may be. Each is open while we go through it.
const MOST_DEPTH: usize = 256;

/// Finds directories below a root, and remembers the last one: entries of a directory come together.
pub(super) struct Trail {
    root: Arc<OwnedFd>,
    last: Option<(Vec<u8>, Found)>,
}

/// A directory that was found.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) directory: Arc<OwnedFd>,
    /// Where it really is, links apart.
    path: Vec<u8>,
}

// === impl Trail ===

impl Trail {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root: Arc::new(root), last: None }
    }

    pub(super) fn root(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.root)
    }

    /// A way may lead elsewhere from now on.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// The directory at a path without links, where there is one.
    pub(super) fn plain(&self, path: &[u8]) -> Option<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        fs::openat2(&*self.root, os(path), DIRECTORY, Mode::empty(), inside()).ok().or_else(|| {
            // Where the kernel does not know the call.
            let mut here = fs::openat(&*self.root, ".", DIRECTORY, Mode::empty()).ok()?;
            for name in path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"." | b"")) {
                here = fs::openat(&here, os(name), DIRECTORY, Mode::empty()).ok()?;
            }
            Some(here)
        })
    }

    /// The directory that these names lead to. Links in the way are followed: an absolute one from the root, and one that leads
    /// above the root is refused. What is missing, or is taken away by a whiteout, is asked of `make`.
    pub(super) fn find(
        &mut self,
        names: &[&[u8]],
        mut make: impl FnMut(BorrowedFd<'_>, &[u8], &[u8]) -> Result<OwnedFd>,
    ) -> Result<Found> {
        let asked = names.join(&b'/');
        if let Some((_, found)) = self.last.as_ref().filter(|(path, _)| *path == asked) {
            return Ok(found.clone());
        }
        let flags = DIRECTORY;
        let found = match fs::openat2(&*self.root, os(or_dot(&asked)), flags, Mode::empty(), inside()) {
            Ok(directory) => Found { directory: Arc::new(directory), path: asked.clone() },
            // All else needs a closer look: a link, something that is missing, an old kernel.
            Err(_) => self.walk(names, &mut make)?,
        };
        self.last = Some((asked, found.clone()));
        Ok(found)
    }

    fn walk(
        &self,
        names: &[&[u8]],
        make: &mut impl FnMut(BorrowedFd<'_>, &[u8], &[u8]) -> Result<OwnedFd>,
    ) -> Result<Found> {
        let mut ahead: VecDeque<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        let mut trail: Vec<(Vec<u8>, Arc<OwnedFd>)> = Vec::new();
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == b".." {
                if trail.pop().is_none() {
                    return Err(Error::corrupt("a link in its way leads out of the layer"));
                }
                continue;
            }
            if trail.len() >= MOST_DEPTH {
                return Err(Error::corrupt(format!("more than {MOST_DEPTH} directories deep")));
            }
            let here = trail.last().map_or(&self.root, |(_, directory)| directory);
            let next = match fs::openat(&**here, os(&name), DIRECTORY, Mode::empty()) {
                Ok(directory) => directory,
                Err(Errno::NOENT) => make(here.as_fd(), &name, &joined(&trail, &name))?,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let stat = fs::statat(&**here, os(&name), AtFlags::SYMLINK_NOFOLLOW)
                        .map_err(|error| Error::io("stat", error.into()))?;
                    if is_whiteout(&stat) {
                        make(here.as_fd(), &name, &joined(&trail, &name))?
                    } else if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                        links += 1;
                        if links > MOST_LINKS {
                            return Err(Error::corrupt("too many links in its way"));
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
                        return Err(Error::corrupt(format!("{shown} in its way is no directory")));
                    }
                }
                Err(error) => return Err(Error::io("open", error.into())),
            };
            trail.push((name, Arc::new(next)));
        }
        let path = trail.iter().map(|(name, _)| name.as_slice()).collect::<Vec<_>>().join(&b'/');
        let directory = trail.pop().map_or_else(|| Arc::clone(&self.root), |(_, directory)| directory);
        Ok(Found { directory, path })
    }
}

// === impl Found ===

impl Found {
    /// Where something in the directory is.
    pub(super) fn child(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() { name.to_vec() } else { [&self.path, name].join(&b'/') }
    }
}

fn joined(trail: &[(Vec<u8>, Arc<OwnedFd>)], name: &[u8]) -> Vec<u8> {
    trail.iter().map(|(name, _)| name.as_slice()).chain([name]).collect::<Vec<_>>().join(&b'/')
}

/// The names that a path of an archive goes through, from the root of the layer.
pub(super) fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let mut names = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(Error::corrupt("a name with '..' in it, which could lead out of the layer")),
            name if name.len() > 255 => {
                return Err(Error::corrupt(format!("a name of {} bytes", name.len())));
            }
            name => names.push(name),
        }
    }
    if names.len() > MOST_DEPTH {
        return Err(Error::corrupt(format!("more than {MOST_DEPTH} directories deep")));
    }
    Ok(names)
}

fn inside() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

fn or_dot(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}
