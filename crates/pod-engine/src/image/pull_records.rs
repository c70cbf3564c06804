//! Records of pulls for a runtime that keeps none itself: files that survive restarts, and that all nodes on the same image store share.
//!
//! Before a pull its intent is recorded, under the name of the image, and after it the image and the credentials that succeeded. An image
//! without a record was present before and may be used by all pods, unless one of its names has an intent: then a pull may have added it,
//! and no pod may use it until a pull succeeds. Credentials are stored as hashes.
//!
//! An intent is a locked file. The lock ends with the process, so that an intent without a lock is one whose pull has an unknown result.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{
    access::{Access, ImageAccess, hex},
    name,
};
use crate::backend::Image;

/// The pull records of an image store.
#[derive(Debug)]
pub(super) struct PullRecords {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Serializes access to the files by this node. Nodes are not serialized: if an update is lost, an image has to be pulled once more.
    lock: tokio::sync::Mutex<()>,
}

/// An active pull. If it is dropped without a result, the intent stays recorded.
#[derive(Debug)]
pub(super) struct PullIntent {
    records: Arc<PullRecords>,
    image: String,
    path: PathBuf,
    /// Holds the lock.
    _file: File,
    /// Intents of earlier pulls whose result is unknown.
    stale: Vec<PathBuf>,
}

/// A pulled image.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    image_ref: String,
    updated: Timestamp,
    access: ImageAccess,
}

// === impl PullRecords ===

impl PullRecords {
    pub(super) fn new(folder: &Path) -> Arc<Self> {
        Arc::new(Self {
            pulling: folder.join("pulling"),
            pulled: folder.join("pulled"),
            lock: tokio::sync::Mutex::default(),
        })
    }

    /// Who may use this image, which is present, under this name.
    pub(super) async fn access(self: &Arc<Self>, image: &str, present: &Image) -> Access {
        let (written, present) = (image.to_owned(), present.clone());
        let access = self.blocking(move |records| {
            if let Some(record) = records.read(&present.id)? {
                return Ok(record.access.of(bare(&written)));
            }
            let names = present.tags.iter().chain(&present.digests).chain([&written]);
            let begun = names.map(|name| records.intents(name)).collect::<io::Result<Vec<_>>>()?;
            let begun = begun.iter().any(|intents| !intents.is_empty());
            Ok(if begun { Access::Unknown } else { Access::Everyone })
        });
        access.await.unwrap_or_else(|error| {
            tracing::warn!(%error, image, "cannot read the pull records of an image; it is pulled again");
            Access::Unknown
        })
    }

    /// Records the intent to pull.
    pub(super) async fn begin(self: &Arc<Self>, image: &str) -> io::Result<PullIntent> {
        let image = image.to_owned();
        self.blocking(move |records| {
            let mut stale = Vec::new();
            for path in records.intents(&image)? {
                if is_abandoned(&path)? {
                    stale.push(path);
                }
            }
            // One is enough.
            stale.split_off(stale.len().min(1)).iter().try_for_each(|path| remove(path))?;
            create_folder(&records.pulling)?;
            let unique = rand::random::<u64>();
            let (new, path) = (format!("new.{unique:016x}"), format!("{}.{unique:016x}", key(&image)));
            let (new, path) = (records.pulling.join(new), records.pulling.join(path));
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
            // It gets its name when it is locked, so that nobody takes it for an old one.
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.write_all(image.as_bytes())?;
            // To disk, because the files of the runtime may be there first.
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&records.pulling)?.sync_all()?;
            Ok(PullIntent { records: Arc::clone(records), image, path, _file: file, stale })
        })
        .await
    }

    /// Removes the records of images that no longer exist, except those of pulls after `began`.
    pub(super) async fn prune(self: &Arc<Self>, kept: BTreeSet<String>, began: Timestamp) {
        let pruned = self.blocking(move |records| {
            for entry in entries(&records.pulled)? {
                let Ok(content) = fs::read(&entry) else { continue };
                let Ok(record) = serde_json::from_slice::<Record>(&content) else { continue };
                if record.updated < began && !kept.contains(&record.image_ref) {
                    remove(&entry)?;
                }
            }
            Ok(())
        });
        if let Err(error) = pruned.await {
            tracing::warn!(%error, "cannot remove the pull records of images that are gone");
        }
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let _held = self.lock.lock().await;
        let records = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&records)).await.map_err(io::Error::other)?
    }

    /// The intents to pull this name, active or not.
    fn intents(&self, image: &str) -> io::Result<Vec<PathBuf>> {
        let prefix = format!("{}.", key(image));
        let is_own = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix))
        };
        Ok(entries(&self.pulling)?.into_iter().filter(is_own).collect())
    }

    fn read(&self, image_ref: &str) -> io::Result<Option<Record>> {
        match fs::read(self.record(image_ref)) {
            Ok(content) => Ok(Some(serde_json::from_slice(&content)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes the record of an image; it is created if there is none, or if it cannot be read.
    fn update(
        &self,
        image_ref: &str,
        now: Timestamp,
        change: impl FnOnce(&mut ImageAccess) -> bool,
    ) -> io::Result<()> {
        let known = self.read(image_ref).unwrap_or_else(|error| {
            tracing::warn!(%error, image_ref, "cannot read the pull record of an image; it is replaced");
            None
        });
        let is_new = known.is_none();
        let mut access = known.map(|record| record.access).unwrap_or_default();
        if !change(&mut access) && !is_new {
            return Ok(());
        }
        let record = Record { image_ref: image_ref.to_owned(), updated: now, access };
        replace(&self.record(image_ref), &serde_json::to_vec(&record)?)
    }

    fn record(&self, image_ref: &str) -> PathBuf {
        self.pulled.join(format!("{}.json", hex(image_ref.as_bytes())))
    }
}

// === impl PullIntent ===

impl PullIntent {
    /// Whether an earlier pull of this name may have added an image without a record.
    pub(super) fn follows_unknown_result(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Closes the image that is present under the name, if it has no record: an earlier pull whose result is unknown may have added it.
    pub(super) async fn close(&mut self, image_ref: &str, now: Timestamp) -> io::Result<()> {
        let (image_ref, stale) = (image_ref.to_owned(), std::mem::take(&mut self.stale));
        self.records
            .blocking(move |records| {
                records.update(&image_ref, now, |_| false)?;
                stale.iter().try_for_each(|path| remove(path))
            })
            .await
    }

    /// Records the result: pulled with credentials of this hash, or anonymously.
    pub(super) async fn succeed(self, image_ref: &str, hash: Option<String>, now: Timestamp) {
        let (records, image_ref) = (Arc::clone(&self.records), image_ref.to_owned());
        let recorded = records.blocking(move |records| {
            let added = records.update(&image_ref, now, |access| access.allow(bare(&self.image), hash));
            // Otherwise the intents stay: other pods must prove their credentials by a pull.
            added.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.image)))?;
            self.stale.iter().chain([&self.path]).try_for_each(|path| remove(path))
        });
        if let Err(error) = recorded.await {
            tracing::warn!(%error, "cannot record the pull of an image");
        }
    }

    /// Removes the intent: the pull has failed.
    pub(super) async fn finish(self) {
        let records = Arc::clone(&self.records);
        if let Err(error) = records.blocking(move |_| remove(&self.path)).await {
            tracing::warn!(%error, "cannot remove the record of a failed pull");
        }
    }
}

/// Whether nobody holds the lock of an intent any more.
fn is_abandoned(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The key of an intent: the same for all forms of a name.
fn key(image: &str) -> String {
    hex(name::key(image).as_bytes())
}

fn bare(image: &str) -> &str {
    name::parse(image).map_or(image, |name| name.bare)
}

/// The files in a folder, which may not exist.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Removes a file, which may be gone.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file atomically. Only its owner can read it.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    create_folder(folder)?;
    // Other nodes may write the same record.
    let new = path.with_extension(format!("{:016x}.new", rand::random::<u64>()));
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
    let written =
        file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests;
