//! The file of an intent to pull. It is locked, and the lock ends with the process: an intent without a lock is one whose pull has an
//! unknown result.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// How the file is named before it is complete.
const INCOMPLETE: &str = "new.";

/// The content of the file.
#[derive(Debug)]
pub(super) struct IntentFile {
    /// The name that is pulled.
    pub(super) image: String,
    /// The id of the image that had this name before and was for everyone.
    pub(super) preloaded: Option<String>,
}

// === impl IntentFile ===

impl IntentFile {
    /// Writes it to a file in this folder whose name begins with the key. It is locked as long as the file is open.
    pub(super) fn write(&self, folder: &Path, key: &str) -> io::Result<(PathBuf, File)> {
        let unique = rand::random::<u64>();
        let incomplete = folder.join(format!("{INCOMPLETE}{unique:016x}"));
        let path = folder.join(format!("{key}.{unique:016x}"));
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&incomplete)?;
        // It gets its name when it is locked, so that nobody takes it for an old one.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(self.image.as_bytes())?;
        if let Some(preloaded) = &self.preloaded {
            write!(file, "\n{preloaded}")?;
        }
        // To disk, because the files of the runtime may be there first.
        file.sync_all()?;
        fs::rename(&incomplete, &path)?;
        File::open(folder)?.sync_all()?;
        Ok((path, file))
    }

    /// Reads a file; `None` if it is gone.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        match fs::read_to_string(path) {
            Ok(content) => {
                let mut lines = content.lines().map(ToOwned::to_owned);
                Ok(Some(Self { image: lines.next().unwrap_or_default(), preloaded: lines.next() }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the image with this id, which has a name of the intent, may come from its pull.
    pub(super) fn may_have_added(&self, image_ref: &str) -> bool {
        self.preloaded.as_deref() != Some(image_ref)
    }
}

/// Whether the file has no content yet.
pub(super) fn is_incomplete(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(INCOMPLETE))
}

/// Whether nobody holds the lock any more.
pub(super) fn is_abandoned(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // Shared: several nodes may ask at the same time.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
