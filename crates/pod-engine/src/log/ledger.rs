//! Which directories of logs are ours. Others write beside us into the same log root, a kubelet or another node of this machine, and what
//! is theirs cannot be told by its name: so each directory is noted before it is made, and nothing is removed that is not noted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use vk_provider::{Error, PodRef, Result};

use super::directory;

/// The notes: a file `<root>/log-directories/<namespace>_<name>_<uid>` for each pod, which holds the path. Everything here blocks.
#[derive(Clone, Debug)]
pub struct Ledger(PathBuf);

/// One note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The pod's UID.
    pub uid: String,
    /// The directory of its logs.
    pub directory: PathBuf,
    note: PathBuf,
}

// === impl Ledger ===

impl Ledger {
    /// The notes below a directory that is the node's own.
    pub fn new(root: &Path) -> Self {
        Self(root.join("log-directories"))
    }

    /// Notes that the pod's logs are ours. Before their directory is made, so that no crash leaves one that nobody removes.
    pub fn enter(&self, log_root: &Path, pod: &PodRef) -> Result<()> {
        let path = directory::of_pod(log_root, pod);
        let Some(name) = path.file_name().filter(|_| path.parent() == Some(log_root)) else {
            return Err(Error::invalid(format!("logs of pod {pod}: this cannot be a directory's name")));
        };
        let note = self.0.join(name);
        if fs::read(&note).is_ok_and(|text| text == path.as_os_str().as_encoded_bytes()) {
            return Ok(());
        }
        let write = || {
            fs::create_dir_all(&self.0)?;
            // In place at once: half a path would be another directory's.
            let fresh = self.0.join(format!(".{:08x}", rand::random::<u32>()));
            fs::write(&fresh, path.as_os_str().as_encoded_bytes())?;
            fs::rename(&fresh, &note)
        };
        write().map_err(|error| failed("write", &note, error))
    }

    /// All notes.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let listed = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(|error| failed("list", &self.0, error))?,
        };
        let mut entries = Vec::new();
        for file in listed {
            let note = file.map_err(|error| failed("list", &self.0, error))?.path();
            let Some(name) = note.file_name().and_then(|name| name.to_str()) else { continue };
            // No name of Kubernetes has an underscore in it.
            let mut parts = name.split('_');
            let (Some(_), Some(_), Some(uid), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let Ok(text) = fs::read_to_string(&note) else { continue };
            let directory = PathBuf::from(text);
            // What was tampered with is nobody's.
            if directory.is_absolute() && directory.file_name() == note.file_name() && !uid.is_empty() {
                entries.push(Entry { uid: uid.to_owned(), directory, note: note.clone() });
            }
        }
        Ok(entries)
    }

    /// Removes a pod's logs, and then the note of them. Nothing there is fine.
    pub fn strike(&self, entry: &Entry) -> Result<()> {
        vk_files::tree::remove(&entry.directory)
            .map_err(|error| Error::internal("remove logs").caused_by(error))?;
        match fs::remove_file(&entry.note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &entry.note, error))
            }
            _ => Ok(()),
        }
    }
}

fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::internal(format!("{operation} {}", path.display())).caused_by(error)
}
