//! The directory that holds images, for several processes at once.
//!
//! ```text
//! index.json             names of images, and what each consists of
//! blobs/sha256/SUM       configurations and manifests
//! layers/CHAIN/fs        unpacked layers (`plain/` in place of `layers/` without root)
//! flat/CHAIN             all layers of an image in one tree, where that was asked for
//! holds/ID/…             links to what needs an image
//! tmp/…                  what is being made; each directory is locked by who makes it
//! lock                   held shortly: shared to look and to claim, alone to change the index and to remove
//! ```
//!
//! Everything is made in `tmp` and renamed into place. A process that dies leaves an unlocked directory there, which the next one to
//! open the store removes, together with layers that no image and nobody at work refers to.

mod flat;
mod garbage;
mod index;
mod intake;
mod lock;
mod scratch;

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub(crate) use self::intake::{Intake, Names};
use self::{
    index::{Index, Snapshot},
    lock::Lock,
};
use super::{Digest, Error, Form, Kind, Result, Settings, Stored, Usage, name::Asked, pull::Clients};

/// How many layers are unpacked at once.
const UNPACKED_AT_ONCE: usize = 4;
/// As much of an id as may stand for all of it.
const SHORT_ID: usize = 12;

/// The images of this machine.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    form: Form,
    pub(crate) settings: Settings,
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    pub(crate) clients: Clients,
    pub(crate) unpackers: Semaphore,
    /// Layers that are being made by this process, so that two pulls do not make the same.
    claims: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

/// What a removal did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that are no more.
    pub tags: Vec<String>,
    /// The id of the image, where its last name was among them.
    pub image: Option<String>,
    /// Bytes of layers that no other image needs.
    pub freed: u64,
}

// === impl Store ===

impl Store {
    /// Opens the store in a directory, and makes it where it is not there. Removes what processes left that died.
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
        let form = match settings.form {
            Some(form) => form,
            None => scratch::found_form(&root)?,
        };
        let clients = Clients::new(settings.plain_http.clone());
        let unpackers = Semaphore::new(UNPACKED_AT_ONCE);
        let (snapshot, claims) = (Mutex::default(), Mutex::default());
        let store = Arc::new(Self { root, form, settings, snapshot, clients, unpackers, claims });
        store.collect()?;
        Ok(store)
    }

    /// How layers are kept.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// An image by its name, by a name with a digest, by its id, or by the first digits of that.
    pub fn image(&self, asked: &str) -> Result<Option<Stored>> {
        let snapshot = self.snapshot()?;
        Ok(snapshot.find(&Asked::parse(asked)?, asked).and_then(|id| snapshot.stored(&id)).cloned())
    }

    /// All images, by their ids.
    pub fn list(&self) -> Result<Vec<Stored>> {
        Ok(self.snapshot()?.all().cloned().collect())
    }

    /// What all images take. Files that several share are counted once.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = Usage::default();
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

    /// Takes a name away, and the image with its last one; by an id, the image with all its names. What is not there is removed
    /// already. An image that a container has cannot be removed.
    pub fn remove(&self, asked: &str) -> Result<Removed> {
        let wanted = Asked::parse(asked)?;
        let lock = Lock::exclusive(&self.root)?;
        let mut index = Index::read(&self.root)?;
        let Some(id) = index.find(&wanted, asked) else { return Ok(Removed::default()) };
        let mut removed = Removed::default();
        let Some(image) = index.images.get_mut(&id) else { return Ok(removed) };
        let named = match &wanted {
            Asked::Name(name) => {
                Some(name.kept()).filter(|name| image.tags.contains(name) || image.digests.contains(name))
            }
            Asked::Id(_) => None,
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
        let (trash, freed) = self.sweep(&lock, &index)?;
        drop(lock);
        drop(trash);
        removed.freed = freed;
        tracing::info!(image = asked, freed, "removed an image's name");
        Ok(removed)
    }

    /// Keeps an image as long as something exists, which is the directory of a container that has it. To be called before its
    /// layers are used. `NotFound` where the image is gone.
    pub fn hold(&self, image: &str, holder: &Path) -> Result<()> {
        let _lock = Lock::shared(&self.root)?;
        let index = Index::read(&self.root)?;
        let Some(id) = index.find(&Asked::parse(image)?, image) else {
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

    /// What needs an image.
    fn holder(&self, id: &Digest) -> Option<PathBuf> {
        let holds = self.root.join("holds").join(id.hex());
        let links = fs::read_dir(&holds).ok()?.flatten();
        let mut holders = links.filter_map(|link| fs::read_link(link.path()).ok());
        holders.find(|holder| holder.symlink_metadata().is_ok())
    }

    /// What was last read of the index, or what is written there now.
    fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let stamp = index::stamp(&self.root);
        let mut known = self.snapshot.lock();
        if let Some(snapshot) = known.as_ref().filter(|known| stamp.is_some() && known.stamp() == stamp) {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = Arc::new(Snapshot::read(self, stamp)?);
        *known = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// The right to make a layer in this process.
    pub(crate) async fn claim(&self, chain: &Digest) -> tokio::sync::OwnedMutexGuard<()> {
        let claim = {
            let mut claims = self.claims.lock();
            claims.retain(|_, claim| claim.strong_count() > 0);
            let known = claims.get(chain).and_then(Weak::upgrade);
            let claim = known.unwrap_or_default();
            claims.insert(*chain, Arc::downgrade(&claim));
            claim
        };
        claim.lock_owned().await
    }

    fn layers(&self) -> PathBuf {
        self.root.join(match self.form {
            Form::Overlay => "layers",
            Form::Plain => "plain",
        })
    }

    /// Where a layer is, whether it is there or not.
    fn layer(&self, chain: &Digest) -> PathBuf {
        self.layers().join(chain.hex()).join("fs")
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }
}

/// What a layer takes, as it was found when it was made.
fn layer_usage(layer: &Path) -> Usage {
    fs::read(layer.join("layer.json"))
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok())
        .unwrap_or_default()
}

/// What is in a directory.
fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect())
        .map_err(Error::system("list", directory))
}

/// Whether this may be the beginning of an id.
fn is_short_id(asked: &str) -> bool {
    (SHORT_ID..64).contains(&asked.len())
        && asked.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
