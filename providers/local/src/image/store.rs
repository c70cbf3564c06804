//! The image store: a directory that several processes share.
//!
//! ```text
//! index.json             names of images, and their layers
//! blobs/sha256/DIGEST    configs and manifests
//! layers/CHAIN/fs        unpacked layers (`plain/` instead of `layers/` without root)
//! flat/CHAIN             all layers of an image in one tree, created on demand
//! holds/ID/…             links to the users of an image
//! tmp/…                  work in progress; each directory is locked by its process
//! lock                   held briefly: shared to read and to claim, exclusive to change the index and to remove
//! ```
//!
//! Everything is created in `tmp` and renamed into place. A process that dies leaves an unlocked directory there; the
//! next one to open the store removes it, together with layers that no image and no running pull refers to.

mod flat_image;
mod gc;
mod index;
mod ingest;
mod lock;
mod temp_dir;

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use vk_pod_engine::image::Access;

pub(crate) use self::ingest::{ImageNames, ImageOrigin, Ingest};
use self::{
    index::{Index, IndexSnapshot},
    lock::StoreLock,
};
use super::{
    Digest, DiskUsage, Error, Kind, LayerFormat, Result, Settings, StoredImage,
    name::ImageQuery,
    pull::{LayerSource, Registries},
};

/// Number of layers that are unpacked concurrently.
const CONCURRENT_UNPACKS: usize = 4;
/// Minimum length of a short id.
const MIN_SHORT_ID: usize = 12;

/// The image store of this host.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    layer_format: LayerFormat,
    pub(crate) settings: Settings,
    snapshot: Mutex<Option<Arc<IndexSnapshot>>>,
    pub(crate) registries: Registries,
    pub(crate) unpackers: Arc<Semaphore>,
    /// Layers that this process is downloading, so that two pulls do not download the same one.
    claims: Mutex<HashMap<LayerSource, Weak<tokio::sync::Mutex<()>>>>,
}

/// The result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedImage {
    /// Names that were removed.
    pub tags: Vec<String>,
    /// The id of the image, if its last name was removed.
    pub image: Option<String>,
    /// Bytes of layers that were freed.
    pub freed: u64,
}

// === impl Store ===

impl Store {
    /// Opens the store in a directory, creating it if missing. Removes what dead processes left.
    pub fn open(root: &Path, settings: Settings) -> Result<Arc<Self>> {
        let make = |path: &Path| {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(Error::system("make", path))
        };
        make(root)?;
        fs::set_permissions(root, fs::Permissions::from_mode(0o700)).map_err(Error::system("chmod", root))?;
        for name in ["blobs/sha256", "layers", "plain", "flat", "holds", "tmp"] {
            make(&root.join(name))?;
        }
        let root = root.canonicalize().map_err(Error::system("find", root))?;
        let layer_format = match settings.layer_format {
            Some(layer_format) => layer_format,
            None => temp_dir::detect_layer_format(&root)?,
        };
        let registries = Registries::new(settings.plain_http.clone(), settings.pull_limits.document_time);
        let unpackers = Arc::new(Semaphore::new(CONCURRENT_UNPACKS));
        let (snapshot, claims) = (Mutex::default(), Mutex::default());
        let store = Arc::new(Self { root, layer_format, settings, snapshot, registries, unpackers, claims });
        store.collect_garbage()?;
        Ok(store)
    }

    /// How layers are stored.
    pub fn layer_format(&self) -> LayerFormat {
        self.layer_format
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// An image by name, name with digest, id or short id.
    pub fn image(&self, asked: &str) -> Result<Option<StoredImage>> {
        let snapshot = self.snapshot()?;
        Ok(snapshot.find(&ImageQuery::parse(asked)?, asked).and_then(|id| snapshot.stored(&id)).cloned())
    }

    /// Who may use the image with this id under a name without pulling it.
    pub fn access(&self, asked: &str, id: &str) -> Result<Access> {
        let repository = match ImageQuery::parse(asked)? {
            ImageQuery::ImageName(name) => name.repository(),
            // An id says nothing about where a pod may pull from.
            ImageQuery::Id(_) => String::new(),
        };
        Ok(self.snapshot()?.access(&id.parse()?, &repository))
    }

    /// All images, ordered by id.
    pub fn list(&self) -> Result<Vec<StoredImage>> {
        Ok(self.snapshot()?.all().cloned().collect())
    }

    /// Disk usage of all images. Shared layers are counted once.
    pub fn usage(&self) -> Result<DiskUsage> {
        let mut usage = DiskUsage::default();
        let layers = self.layers();
        for layer in names(&layers)? {
            let layer = layer_usage(&layers.join(layer));
            usage.bytes += layer.bytes;
            usage.inodes += layer.inodes;
        }
        let blobs = self.root.join("blobs/sha256");
        for blob in names(&blobs)? {
            usage.bytes += fs::metadata(blobs.join(blob)).map_or(0, |blob| blob.len());
            usage.inodes += 1;
        }
        Ok(usage)
    }

    /// Removes a name, and the image with its last name; given an id, the image with all its names. Does nothing if it
    /// does not exist. An image in use by a container cannot be removed.
    pub fn remove(&self, asked: &str) -> Result<RemovedImage> {
        let wanted = ImageQuery::parse(asked)?;
        let lock = StoreLock::exclusive(&self.root)?;
        let mut index = Index::read(&self.root)?;
        let Some(id) = index.find(&wanted, asked) else { return Ok(RemovedImage::default()) };
        let mut removed = RemovedImage::default();
        let Some(image) = index.images.get_mut(&id) else { return Ok(removed) };
        let named = match &wanted {
            ImageQuery::ImageName(name) => Some(name.stored_name())
                .filter(|name| image.tags.contains(name) || image.digests.contains(name)),
            ImageQuery::Id(_) => None,
        };
        if let Some(name) = named {
            if image.tags.remove(&name) {
                removed.tags.push(name);
            } else {
                image.digests.remove(&name);
            }
        } else {
            removed.tags.extend(std::mem::take(&mut image.tags));
        }
        if image.tags.is_empty() {
            if let Some(holder) = self.holder(&id) {
                let text = format!("image {asked:?} is in use by {}", holder.display());
                return Err(Error::new(Kind::Held, text));
            }
            index.images.remove(&id);
            removed.image = Some(id.to_string());
        }
        index.write(&self.root)?;
        let (trash, freed) = self.detach_garbage(&lock, &index)?;
        drop(lock);
        drop(trash);
        removed.freed = freed;
        tracing::info!(image = asked, freed, "removed an image name");
        Ok(removed)
    }

    /// Keeps an image as long as `holder` (the directory of a container) exists. Must be called before its layers are
    /// used. Fails with `NotFound` if the image is gone.
    pub fn hold(&self, image: &str, holder: &Path) -> Result<()> {
        let _lock = StoreLock::shared(&self.root)?;
        let index = Index::read(&self.root)?;
        let Some(id) = index.find(&ImageQuery::parse(image)?, image) else {
            return Err(Error::new(Kind::NotFound, format!("image {image:?}: not found")));
        };
        let holds = self.root.join("holds").join(id.hex());
        fs::create_dir_all(&holds).map_err(Error::system("make", &holds))?;
        let link = holds.join(Digest::of(holder.as_os_str().as_encoded_bytes()).hex());
        match std::os::unix::fs::symlink(holder, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::system("make", &link)(error))
            }
            _ => Ok(()),
        }
    }

    /// A user of an image.
    fn holder(&self, id: &Digest) -> Option<PathBuf> {
        let holds = self.root.join("holds").join(id.hex());
        let links = fs::read_dir(&holds).ok()?.flatten();
        let mut holders = links.filter_map(|link| fs::read_link(link.path()).ok());
        holders.find(|holder| holder.symlink_metadata().is_ok())
    }

    /// The current content of the index, cached until the file changes.
    fn snapshot(&self) -> Result<Arc<IndexSnapshot>> {
        let stamp = index::stamp(&self.root);
        let mut known = self.snapshot.lock();
        if let Some(snapshot) = known.as_ref().filter(|known| stamp.is_some() && known.stamp() == stamp) {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = Arc::new(IndexSnapshot::read(self, stamp)?);
        *known = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Locks a layer from one source for this process.
    pub(crate) async fn claim(&self, source: LayerSource) -> tokio::sync::OwnedMutexGuard<()> {
        let claim = {
            let mut claims = self.claims.lock();
            claims.retain(|_, claim| claim.strong_count() > 0);
            let known = claims.get(&source).and_then(Weak::upgrade);
            let claim = known.unwrap_or_default();
            claims.insert(source, Arc::downgrade(&claim));
            claim
        };
        claim.lock_owned().await
    }

    fn layers(&self) -> PathBuf {
        self.root.join(match self.layer_format {
            LayerFormat::Overlay => "layers",
            LayerFormat::Plain => "plain",
        })
    }

    /// The directory of a layer, which may not exist.
    fn layer(&self, chain: &Digest) -> PathBuf {
        self.layers().join(chain.hex()).join("fs")
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }
}

/// The disk usage of a layer, measured when it was unpacked.
fn layer_usage(layer: &Path) -> DiskUsage {
    fs::read(layer.join("layer.json"))
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok())
        .unwrap_or_default()
}

/// The names in a directory.
fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect())
        .map_err(Error::system("list", directory))
}

/// Whether this may be a short id.
fn is_short_id(asked: &str) -> bool {
    (MIN_SHORT_ID..64).contains(&asked.len())
        && asked.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
