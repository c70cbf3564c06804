//! Errors.

use std::{io, path::PathBuf};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is not allowed below a directory.
    #[error("invalid path: {why}: {path}")]
    InvalidPath {
        /// The path as it was given.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The path leads out of the directory, through a symbolic link.
    #[error("path {path} is outside of allowed base {root}", root = root.display())]
    Outside {
        /// The directory.
        root: PathBuf,
        /// The path below it.
        path: String,
    },
    /// The file is larger than the limit.
    #[error("{path} is larger than {limit} bytes", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The path leads to something of another type.
    #[error("{path} is not a {expected}", path = path.display())]
    WrongType {
        /// The path.
        path: PathBuf,
        /// The expected type.
        expected: &'static str,
    },
    /// Something is mounted in the tree, so not all of it is ours.
    #[error("{path} contains a mount point", path = path.display())]
    Mounted {
        /// The tree.
        path: PathBuf,
    },
    /// An I/O error.
    #[error("{operation} {path}", path = path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source: source.into() }
    }

    /// Whether the path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
