//! File locks between processes, and between threads, because each lock opens the file again.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::image::{Error, Result};

/// The lock of the store, held until dropped. Never held during network access.
#[derive(Debug)]
pub(super) struct StoreLock {
    _file: File,
}

impl StoreLock {
    /// Excludes changes of the index and removals.
    pub(super) fn shared(root: &Path) -> Result<Self> {
        Self::take(root, FlockOperation::LockShared)
    }

    /// Excludes everything else.
    pub(super) fn exclusive(root: &Path) -> Result<Self> {
        Self::take(root, FlockOperation::LockExclusive)
    }

    fn take(root: &Path, operation: FlockOperation) -> Result<Self> {
        let path = root.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(Error::system("open", &path))?;
        wait(&file, operation).map_err(Error::system("lock", &path))?;
        Ok(Self { _file: file })
    }
}

fn wait(file: &File, operation: FlockOperation) -> Result<(), Errno> {
    loop {
        match flock(file, operation) {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// Locks a directory, unless it is locked.
pub(super) fn try_lock(directory: &Path) -> Result<Option<File>> {
    let file = match File::open(directory) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::system("open", directory)(error)),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(Error::system("lock", directory)(error)),
    }
}
