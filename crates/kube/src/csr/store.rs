//! The file of a certificate and its key. It is one file, so that they always match.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{Error, NodeCertificate};

/// A PEM file with a certificate and its key, mode 0600. A file with `.key` added to the name holds the key of an undecided
/// request, so that a restarted process waits for the same request.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    path: PathBuf,
}

impl CertificateStore {
    /// Uses this path. Missing directories are created with the first write.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the stored certificate, if there is one.
    pub fn load(&self) -> Result<Option<NodeCertificate>, Error> {
        let Some(pem) = read(&self.path)? else { return Ok(None) };
        NodeCertificate::from_pem(&pem).map(Some).map_err(|error| Error::File {
            operation: "use",
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Replaces the stored certificate atomically and removes the key of the pending request.
    pub fn save(&self, certificate: &NodeCertificate) -> Result<(), Error> {
        write(&self.path, certificate.pem())?;
        self.remove_key()
    }

    /// Replaces the file with any text, atomically.
    pub(crate) fn write_text(&self, text: &str) -> Result<(), Error> {
        write(&self.path, text)
    }

    /// The key of the pending request.
    pub(super) fn key(&self) -> Result<Option<String>, Error> {
        read(&self.key_path())
    }

    pub(super) fn save_key(&self, pem: &str) -> Result<(), Error> {
        write(&self.key_path(), pem)
    }

    /// Removes the key of the pending request.
    pub(super) fn remove_key(&self) -> Result<(), Error> {
        let path = self.key_path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
            _ => Ok(()),
        }
    }

    fn key_path(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".key");
        name.into()
    }
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file("read", path)(error)),
    }
}

/// Writes a temporary file and renames it: readers see the old or the new content, also after a crash.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(Error::file("make", folder))?;
    let mut name = path.to_path_buf().into_os_string();
    name.push(".new");
    let temporary = PathBuf::from(name);
    let written = (|| {
        // A file left over from a crash may have another mode.
        drop(fs::remove_file(&temporary));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    })();
    written.map_err(Error::file("write", path))
}
