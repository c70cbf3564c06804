//! Locks between processes, and between threads of one: each is a file of its own that was opened.

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

/// The store's lock, held until it is dropped. Never while a network is waited for.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Nobody changes the index or removes anything.
    pub(super) fn shared(root: &Path) -> Result<Self> {
        Self::take(root, FlockOperation::LockShared)
    }

    /// Nobody else does anything.
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

/// Takes the lock of a directory, unless somebody has it.
pub(super) fn own(directory: &Path) -> Result<Option<File>> {
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
