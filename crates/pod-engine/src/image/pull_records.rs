//! Records of pulls for a runtime that keeps none itself: files that survive restarts, and that all nodes on the same image store share.
//!
//! Before a pull its intent is recorded, under the name of the image, and after it the image and the credentials that succeeded. An image
//! without a record was present before and may be used by all pods, unless one of its names has an intent: then a pull may have added it,
//! and no pod may use it until a pull succeeds. Credentials are stored as hashes.
//!
//! Runtimes answer a pull with the id of the image or with a digest: it is recorded under both.
//!
//! An intent also names the image that had the name before and was for everyone: that one stays so unless the pull succeeds.

mod intent_file;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use self::intent_file::IntentFile;
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
    /// Files of intents that had no lock when [`unresolved`](Self::unresolved) was last called.
    abandoned: parking_lot::Mutex<BTreeSet<PathBuf>>,
    /// Files and revisions of records whose images were missing when [`prune`](Self::prune) was last called.
    unused: parking_lot::Mutex<BTreeSet<(PathBuf, u64)>>,
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

/// An intent whose pull ended some time ago with an unknown result.
#[derive(Debug)]
pub(super) struct UnresolvedIntent {
    path: PathBuf,
    pub(super) image: String,
}

/// A pulled image.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    image_ref: String,
    access: ImageAccess,
    /// Random, and another one after each pull.
    #[serde(default)]
    revision: u64,
}

// === impl PullRecords ===

impl PullRecords {
    pub(super) fn new(folder: &Path) -> Arc<Self> {
        Arc::new(Self {
            pulling: folder.join("pulling"),
            pulled: folder.join("pulled"),
            lock: tokio::sync::Mutex::default(),
            abandoned: parking_lot::Mutex::default(),
            unused: parking_lot::Mutex::default(),
        })
    }

    /// Who may use this image, which is present, under this name.
    pub(super) async fn access(self: &Arc<Self>, image: &str, present: &Image) -> Access {
        let (written, present) = (image.to_owned(), present.clone());
        let access = self.blocking(move |records| {
            // In this order: a pull records its image before it removes its intent.
            let begun = records.may_be_pulled(&written, &present)?;
            Ok(match records.find(&present)? {
                Some(record) => record.access.of(bare(&written)),
                None if begun => Access::Unknown,
                None => Access::Everyone,
            })
        });
        access.await.unwrap_or_else(|error| {
            tracing::warn!(%error, image, "cannot read the pull records of an image; it is pulled again");
            Access::Unknown
        })
    }

    /// Records the intent to pull. `present` is the image that has this name now, if there is one.
    pub(super) async fn begin(
        self: &Arc<Self>,
        image: &str,
        present: Option<&Image>,
    ) -> io::Result<PullIntent> {
        let (image, present) = (image.to_owned(), present.cloned());
        self.blocking(move |records| {
            let stale = records.stale_intents(&image)?;
            let mut preloaded = None;
            if let Some(present) = present {
                preloaded = records.is_preloaded(&image, &present)?.then(|| present.id.clone());
            }
            create_folder(&records.pulling)?;
            let intent = IntentFile { image: image.clone(), preloaded };
            let (path, file) = intent.write(&records.pulling, &key(&image))?;
            Ok(PullIntent { records: Arc::clone(records), image, path, _file: file, stale })
        })
        .await
    }

    /// Removes the records of images that no longer exist, unless they were written only after the last call: this node or another one may
    /// have pulled the image since `kept` was listed. Times would not tell, because the clock may be set.
    pub(super) async fn prune(self: &Arc<Self>, kept: BTreeSet<String>) {
        let pruned = self.blocking(move |records| {
            let before = std::mem::take(&mut *records.unused.lock());
            let mut unused = BTreeSet::new();
            for path in entries(&records.pulled)? {
                let Ok(content) = fs::read(&path) else { continue };
                let Ok(record) = serde_json::from_slice::<Record>(&content) else { continue };
                if kept.contains(&record.image_ref) {
                    continue;
                }
                let found = (path, record.revision);
                if before.contains(&found) {
                    remove(&found.0)?;
                } else {
                    unused.insert(found);
                }
            }
            *records.unused.lock() = unused;
            Ok(())
        });
        if let Err(error) = pruned.await {
            tracing::warn!(%error, "cannot remove the pull records of images that are gone");
        }
    }

    /// The intents whose pulls have no result, unless they ended only after the last call: the runtime may still be adding the image.
    pub(super) async fn unresolved(self: &Arc<Self>) -> Vec<UnresolvedIntent> {
        let found = self.blocking(|records| {
            let mut abandoned = BTreeSet::new();
            for path in entries(&records.pulling)? {
                if intent_file::is_incomplete(&path) || intent_file::is_abandoned(&path)? {
                    abandoned.insert(path);
                }
            }
            let before = std::mem::replace(&mut *records.abandoned.lock(), abandoned.clone());
            let mut unresolved = Vec::new();
            for path in abandoned.intersection(&before) {
                if intent_file::is_incomplete(path) {
                    remove(path)?;
                } else if let Some(intent) = IntentFile::read(path)? {
                    unresolved.push(UnresolvedIntent { path: path.clone(), image: intent.image });
                }
            }
            Ok(unresolved)
        });
        found.await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the records of interrupted pulls");
            Vec::new()
        })
    }

    /// Removes an intent without a result. The image that has its name now is closed if the pull may have added it.
    pub(super) async fn resolve(self: &Arc<Self>, intent: UnresolvedIntent, present: Option<Image>) {
        let resolved = self.blocking(move |records| {
            if let Some(present) = present {
                records.close(&intent.path, &present.id)?;
            }
            remove(&intent.path)
        });
        if let Err(error) = resolved.await {
            tracing::warn!(%error, "cannot remove the record of an interrupted pull");
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

    /// The intents to pull this name whose result is unknown. They stay until [`resolve`](Self::resolve), because the runtime may still be
    /// adding their images. Of those that say the same only the newest is kept.
    fn stale_intents(&self, image: &str) -> io::Result<Vec<PathBuf>> {
        let mut newest: BTreeMap<Option<String>, (SystemTime, PathBuf)> = BTreeMap::new();
        for path in self.intents(image)? {
            if !intent_file::is_abandoned(&path)? {
                continue;
            }
            let Some(intent) = IntentFile::read(&path)? else { continue };
            let candidate = (fs::metadata(&path)?.modified()?, path);
            if let Some(known) = newest.remove(&intent.preloaded) {
                let (older, newer) = if known < candidate { (known, candidate) } else { (candidate, known) };
                newest.insert(intent.preloaded, newer);
                remove(&older.1)?;
            } else {
                newest.insert(intent.preloaded, candidate);
            }
        }
        Ok(newest.into_values().map(|(_, path)| path).collect())
    }

    /// Whether a pull may have added this image: one of its names has an intent, and the image did not have this name before.
    fn may_be_pulled(&self, written: &str, present: &Image) -> io::Result<bool> {
        let names = present.tags.iter().chain(&present.digests).map(String::as_str).chain([written]);
        for name in names {
            for path in self.intents(name)? {
                if IntentFile::read(&path)?.is_some_and(|intent| intent.may_have_added(&present.id)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether an image was there before all pulls, and so is for everyone.
    fn is_preloaded(&self, written: &str, present: &Image) -> io::Result<bool> {
        Ok(!self.may_be_pulled(written, present)? && matches!(self.find(present), Ok(None)))
    }

    /// Closes an image without a record if the pull of this intent, whose result is unknown, may have added it.
    fn close(&self, intent: &Path, image_ref: &str) -> io::Result<()> {
        match IntentFile::read(intent)? {
            Some(intent) if intent.may_have_added(image_ref) => self.update(image_ref, |_| ()),
            _ => Ok(()),
        }
    }

    /// The record of an image. It is under a digest alone if the name belonged to another image when the pulled one was inspected.
    fn find(&self, image: &Image) -> io::Result<Option<Record>> {
        for image_ref in std::iter::once(&image.id).chain(&image.digests) {
            if let Some(record) = self.read(image_ref)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn read(&self, image_ref: &str) -> io::Result<Option<Record>> {
        match fs::read(self.record(image_ref)) {
            Ok(content) => Ok(Some(serde_json::from_slice(&content)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes the record of an image; it is created if there is none, or if it cannot be read. It is written in any case, with a new
    /// revision: the image may have been missing before.
    fn update(&self, image_ref: &str, change: impl FnOnce(&mut ImageAccess)) -> io::Result<()> {
        let known = self.read(image_ref).unwrap_or_else(|error| {
            tracing::warn!(%error, image_ref, "cannot read the pull record of an image; it is replaced");
            None
        });
        let mut access = known.map(|record| record.access).unwrap_or_default();
        change(&mut access);
        let record = Record { image_ref: image_ref.to_owned(), access, revision: rand::random() };
        replace(&self.record(image_ref), &serde_json::to_vec(&record)?)
    }

    fn record(&self, image_ref: &str) -> PathBuf {
        self.pulled.join(format!("{}.json", hex(image_ref.as_bytes())))
    }
}

// === impl PullIntent ===

impl PullIntent {
    /// Whether an earlier pull of this name has an unknown result.
    pub(super) fn follows_unknown_result(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Closes the image that has the name now, if an earlier pull may have added it: this pull may give the name to another image.
    pub(super) async fn close(&self, present: &Image) -> io::Result<()> {
        let (stale, id) = (self.stale.clone(), present.id.clone());
        let close =
            move |records: &Arc<PullRecords>| stale.iter().try_for_each(|path| records.close(path, &id));
        self.records.blocking(close).await
    }

    /// Records the result: pulled with credentials of this hash, or anonymously. `image_ref` is the runtime's answer, and `id` the id of the
    /// image. If that is not known the intent stays.
    pub(super) async fn succeed(self, image_ref: &str, id: Option<&str>, hash: Option<String>) {
        let records = Arc::clone(&self.records);
        let refs: BTreeSet<String> = id.into_iter().chain([image_ref]).map(ToOwned::to_owned).collect();
        let is_known = id.is_some();
        let recorded = records.blocking(move |records| {
            for image_ref in &refs {
                let allow = |access: &mut ImageAccess| access.allow(bare(&self.image), hash.clone());
                let added = records.update(image_ref, allow);
                // Otherwise the intent stays: other pods must prove their credentials by a pull.
                added.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.image)))?;
            }
            if is_known { remove(&self.path) } else { Ok(()) }
        });
        if let Err(error) = recorded.await {
            tracing::warn!(%error, "cannot record the pull of an image");
        }
    }

    /// Removes the intent: the pull has failed, or did not begin.
    pub(super) async fn finish(self) {
        let records = Arc::clone(&self.records);
        if let Err(error) = records.blocking(move |_| remove(&self.path)).await {
            tracing::warn!(%error, "cannot remove the record of a failed pull");
        }
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

/// Replaces a file atomically, and on the disk when it returns. Only its owner can read it.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    create_folder(folder)?;
    // Other nodes may write the same record.
    let new = path.with_extension(format!("{:016x}.new", rand::random::<u64>()));
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
    let written =
        file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))?;
    // The removal of an intent, which comes next, may be on the disk first.
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
