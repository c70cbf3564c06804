//! Where a pair is kept: one file, so that certificate and key can never be of two minds.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{Error, Pair};

/// A file with a certificate and its key in PEM, which only its owner may read. Beside it, with `.key` added to the name,
/// stands the key of a request that is not decided: after a restart the same request is waited for.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// Keeps it here. Folders are made when something is kept.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is kept, if anything.
    pub fn load(&self) -> Result<Option<Pair>, Error> {
        let Some(pem) = read(&self.path)? else { return Ok(None) };
        Pair::from_pem(&pem).map(Some).map_err(|error| Error::File {
            operation: "use",
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Keeps a pair in place of the one before, as a whole or not at all. The key of its request is not needed any more.
    pub fn save(&self, pair: &Pair) -> Result<(), Error> {
        write(&self.path, pair.pem())?;
        self.forget_key()
    }

    /// Keeps any text in the same manner.
    pub(crate) fn save_text(&self, text: &str) -> Result<(), Error> {
        write(&self.path, text)
    }

    /// The key of the request that is under way.
    pub(super) fn key(&self) -> Result<Option<String>, Error> {
        read(&self.key_path())
    }

    pub(super) fn save_key(&self, pem: &str) -> Result<(), Error> {
        write(&self.key_path(), pem)
    }

    /// The request came to nothing.
    pub(super) fn forget_key(&self) -> Result<(), Error> {
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

/// A file of another name first: whoever reads sees the old one or the new one, also after a crash.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(Error::file("make", folder))?;
    let mut name = path.to_path_buf().into_os_string();
    name.push(".new");
    let beside = PathBuf::from(name);
    let written = (|| {
        // One that a crash left behind may have other rights.
        drop(fs::remove_file(&beside));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    })();
    written.map_err(Error::file("write", path))
}
