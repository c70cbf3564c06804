//! Why a file could not be had.

use std::{io, path::PathBuf};

/// What the functions of this crate answer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file could not be found, read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is none that may stand below a directory.
    #[error("invalid path: {why}: {path}")]
    Path {
        /// The path as it was given.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The path leads out of the directory, by a symbolic link.
    #[error("path {path} is outside of allowed base {root}", root = root.display())]
    Outside {
        /// The directory.
        root: PathBuf,
        /// The path below it.
        path: String,
    },
    /// The file is larger than the caller can take.
    #[error("{path} is larger than {limit} bytes", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The path leads to something other than what was asked for.
    #[error("{path} is not a {wanted}", path = path.display())]
    Unlike {
        /// What was found.
        path: PathBuf,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Something is mounted in the tree, so it is not all of it ours.
    #[error("{path} has something mounted in it", path = path.display())]
    Mounted {
        /// The tree.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{operation} {path}", path = path.display())]
    System {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system<E: Into<io::Error>>(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::System { operation, path, source: source.into() }
    }

    /// Whether there is nothing under the path.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
