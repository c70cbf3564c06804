//! The log directories of this node. A kubelet or another node may use the same log root with the same names, so each directory is
//! registered before it is created, and only registered directories are removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use vk_provider::{Error, PodRef, Result};

use super::directory;

/// The registry: a file `<root>/log-directories/<namespace>_<name>_<uid>` for each pod, which contains the path. All methods block.
#[derive(Clone, Debug)]
pub struct LogDirectoryRegistry(PathBuf);

/// A registered log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDirectory {
    /// The pod's UID.
    pub uid: String,
    /// The path of the directory.
    pub path: PathBuf,
    file: PathBuf,
}

// === impl LogDirectoryRegistry ===

impl LogDirectoryRegistry {
    /// The registry in the node's directory.
    pub fn new(root: &Path) -> Self {
        Self(root.join("log-directories"))
    }

    /// Registers the log directory of a pod. Call it before the directory is created, so that a crash leaves no unregistered one.
    pub fn register(&self, log_root: &Path, pod: &PodRef) -> Result<()> {
        let path = directory::of_pod(log_root, pod);
        let Some(name) = path.file_name().filter(|_| path.parent() == Some(log_root)) else {
            return Err(Error::invalid(format!(
                "register the logs of pod {pod}: its name is not a valid directory name"
            )));
        };
        let file_path = self.0.join(name);
        if fs::read(&file_path).is_ok_and(|text| text == path.as_os_str().as_encoded_bytes()) {
            return Ok(());
        }
        let write = || {
            fs::create_dir_all(&self.0)?;
            // Atomically: a truncated path would be another directory.
            let fresh = self.0.join(format!(".{:08x}", rand::random::<u32>()));
            fs::write(&fresh, path.as_os_str().as_encoded_bytes())?;
            fs::rename(&fresh, &file_path)
        };
        write().map_err(|error| failed("write", &file_path, error))
    }

    /// All registered log directories.
    pub fn entries(&self) -> Result<Vec<LogDirectory>> {
        let listed = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(|error| failed("list", &self.0, error))?,
        };
        let mut entries = Vec::new();
        for entry in listed {
            let file_path = entry.map_err(|error| failed("list", &self.0, error))?.path();
            let Some(name) = file_path.file_name().and_then(|name| name.to_str()) else { continue };
            // Names in Kubernetes contain no underscore.
            let mut parts = name.split('_');
            let (Some(_), Some(_), Some(uid), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let Ok(text) = fs::read_to_string(&file_path) else { continue };
            let directory = PathBuf::from(text);
            // Ignore files that were tampered with.
            if directory.is_absolute() && directory.file_name() == file_path.file_name() && !uid.is_empty() {
                entries.push(LogDirectory { uid: uid.to_owned(), path: directory, file: file_path.clone() });
            }
        }
        Ok(entries)
    }

    /// Removes a pod's logs and unregisters their directory.
    pub fn remove(&self, entry: &LogDirectory) -> Result<()> {
        vk_files::tree::remove(&entry.path)
            .map_err(|error| Error::internal("remove logs").caused_by(error))?;
        match fs::remove_file(&entry.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &entry.file, error))
            }
            _ => Ok(()),
        }
    }
}

fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::internal(format!("{operation} {}", path.display())).caused_by(error)
}
