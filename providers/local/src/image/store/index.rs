//! The index of the images in the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use serde::{Deserialize, Serialize};
use vk_pod_engine::image::{Access, ImageAccess};

use super::{Store, is_short_id};
use crate::image::{Digest, Error, Result, StoredImage, manifest::parse_config, name::ImageQuery};

const VERSION: u32 = 1;
const FILE: &str = "index.json";

/// The content of `index.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Index {
    version: u32,
    pub(super) images: BTreeMap<Digest, ImageRecord>,
}

/// An image in the index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub(super) tags: BTreeSet<String>,
    pub(super) digests: BTreeSet<String>,
    pub(super) size: u64,
    pub(super) manifest: Option<Digest>,
    /// Chain ids, lowest first.
    pub(super) layers: Vec<Digest>,
    /// Who may use it without pulling it. Part of the record, so that there is never an image without it; if it is
    /// missing, nobody may.
    #[serde(default)]
    pub(super) access: ImageAccess,
}

/// The index with the images it refers to, at one point in time.
#[derive(Debug)]
pub(super) struct IndexSnapshot {
    stamp: Option<Stamp>,
    index: Index,
    stored: BTreeMap<Digest, StoredImage>,
}

/// Identifies a version of the index file.
pub(super) type Stamp = (u64, i64, i64, u64);

// === impl Index ===

impl Index {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let path = root.join(FILE);
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { version: VERSION, images: BTreeMap::new() });
            }
            Err(error) => return Err(Error::system("read", &path)(error)),
        };
        let mut index: Self = serde_json::from_slice(&json).map_err(|why| {
            let path = path.display();
            Error::corrupt(format!("parse {path}: {why}; remove the file to have images pulled again"))
        })?;
        if index.version != VERSION {
            let (path, version) = (path.display(), index.version);
            return Err(Error::invalid(format!(
                "{path} has version {version}, but this program supports {VERSION}: use the newer program, or remove the directory"
            )));
        }
        for record in index.images.values_mut() {
            // Stored before access was recorded. Only imported images have no digests.
            if record.access == ImageAccess::default() && record.digests.is_empty() {
                record.access.allow_everyone();
            }
        }
        Ok(index)
    }

    /// Requires the exclusive lock of the store.
    pub(super) fn write(&self, root: &Path) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|why| Error::io("write index", why.into()))?;
        replace(root, &root.join(FILE), &json)
    }

    pub(super) fn find(&self, wanted: &ImageQuery, asked: &str) -> Option<Digest> {
        let name = match wanted {
            ImageQuery::Id(id) => return self.images.contains_key(id).then_some(*id),
            ImageQuery::ImageName(name) => name.stored_name(),
        };
        let mut images = self.images.iter();
        let named = images
            .find(|(_, image)| image.tags.contains(&name) || image.digests.contains(&name))
            .map(|(id, _)| *id);
        named.or_else(|| {
            if !is_short_id(asked) {
                return None;
            }
            let mut alike = self.images.keys().filter(|id| id.hex().starts_with(asked));
            // Ambiguous short ids match nothing.
            alike.next().filter(|_| alike.next().is_none()).copied()
        })
    }
}

// === impl IndexSnapshot ===

impl IndexSnapshot {
    pub(super) fn read(store: &Store, stamp: Option<Stamp>) -> Result<Self> {
        let mut index = Index::read(&store.root)?;
        let mut stored = BTreeMap::new();
        index.images.retain(|id, record| match load(store, id, record) {
            Ok(image) => {
                stored.insert(*id, image);
                true
            }
            // Parts were removed manually, or it was stored by another kind of user: treated as missing.
            Err(error) => {
                tracing::warn!(image = %id, %error, "ignoring an incomplete image");
                false
            }
        });
        Ok(Self { stamp, index, stored })
    }

    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    pub(super) fn find(&self, wanted: &ImageQuery, asked: &str) -> Option<Digest> {
        self.index.find(wanted, asked)
    }

    pub(super) fn stored(&self, id: &Digest) -> Option<&StoredImage> {
        self.stored.get(id)
    }

    /// Who may use an image under a name of this repository without pulling it.
    pub(super) fn access(&self, id: &Digest, repository: &str) -> Access {
        self.index.images.get(id).map_or(Access::Unknown, |record| record.access.of(repository))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &StoredImage> {
        self.stored.values()
    }
}

pub(super) fn load(store: &Store, id: &Digest, record: &ImageRecord) -> Result<StoredImage> {
    let blob = store.blob(id);
    let config = fs::read(&blob).map_err(Error::system("read", &blob))?;
    if Digest::of(&config) != *id {
        return Err(Error::corrupt(format!("{} does not match its digest", blob.display())));
    }
    let config = parse_config(&config)?;
    let layers: Vec<_> = record.layers.iter().map(|chain| store.layer(chain)).collect();
    for layer in &layers {
        fs::symlink_metadata(layer).map_err(Error::system("find", layer))?;
    }
    let created = config.created().as_deref().and_then(|created| created.parse().ok());
    Ok(StoredImage {
        id: id.to_string(),
        tags: record.tags.iter().cloned().collect(),
        digests: record.digests.iter().cloned().collect(),
        size: record.size,
        config,
        layers,
        created,
    })
}

/// The current version of the index file.
pub(super) fn stamp(root: &Path) -> Option<Stamp> {
    let file = fs::metadata(root.join(FILE)).ok()?;
    Some((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
}

/// Writes a file atomically. Requires the exclusive lock of the store.
pub(super) fn replace(root: &Path, path: &Path, content: &[u8]) -> Result<()> {
    let new = root.join("new");
    let write = || {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(root))?.sync_all()
    };
    write().map_err(|error| {
        // A full disk leaves a partial file.
        let _ = fs::remove_file(&new);
        Error::system("write", path)(error)
    })
}
