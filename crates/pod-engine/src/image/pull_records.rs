//! Records of pulls, in one file per image, which survive restarts.
//!
//! Before a pull the name of the image is recorded (the intent), and after it the image and the credentials that succeeded. An image without
//! a record was present before and may be used by all pods. An image with an intent and without a result may be used by none until a pull
//! succeeds. Credentials are stored as hashes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use vk_provider::resolve::PullCredentials;

use super::name;

/// The pull records of a node.
#[derive(Debug)]
pub(super) struct PullRecords {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Serializes access to the files.
    lock: tokio::sync::Mutex<()>,
    /// Active pulls, by image.
    active: Mutex<HashMap<String, ActivePulls>>,
}

#[derive(Debug, Default)]
struct ActivePulls {
    pulls: usize,
    /// Whether an earlier pull has no recorded result: then a failure of this one says nothing about the image.
    has_stale_intent: bool,
}

/// Who may use a local image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone: it was present before, or it was pulled anonymously.
    Everyone,
    /// Pods with credentials of one of these hashes.
    Credentials(BTreeSet<String>),
    /// Unknown: a pull must show it.
    Unknown,
}

/// An active pull. If it is dropped without a result, the intent stays recorded.
#[derive(Debug)]
pub(super) struct PullIntent {
    records: Arc<PullRecords>,
    image: String,
}

/// A pulled image.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    image_ref: String,
    updated: Timestamp,
    /// By name without tag and digest: two repositories can have the same image with different permissions.
    names: BTreeMap<String, AllowedCredentials>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct AllowedCredentials {
    everyone: bool,
    hashes: BTreeSet<String>,
}

// === impl Records ===

impl PullRecords {
    pub(super) fn new(folder: &Path) -> Arc<Self> {
        Arc::new(Self {
            pulling: folder.join("pulling"),
            pulled: folder.join("pulled"),
            lock: tokio::sync::Mutex::default(),
            active: Mutex::default(),
        })
    }

    /// Who may use this image, which is present under this reference.
    pub(super) async fn access(&self, image: &str, image_ref: &str) -> Access {
        let _held = self.lock.lock().await;
        match self.read(image_ref).await {
            Ok(Some(record)) => match record.names.get(bare(image)) {
                Some(holders) if holders.everyone => Access::Everyone,
                Some(holders) if !holders.hashes.is_empty() => Access::Credentials(holders.hashes.clone()),
                _ => Access::Unknown,
            },
            Ok(None) => {
                let begun = self.active.lock().contains_key(image)
                    || tokio::fs::try_exists(file(&self.pulling, image)).await.unwrap_or(true);
                if begun { Access::Unknown } else { Access::Everyone }
            }
            Err(error) => {
                tracing::warn!(%error, image, "cannot read the pull record of an image; it is pulled again");
                Access::Unknown
            }
        }
    }

    /// Records the intent to pull.
    pub(super) async fn begin(self: &Arc<Self>, image: &str) -> io::Result<PullIntent> {
        let _held = self.lock.lock().await;
        let path = file(&self.pulling, image);
        let begun = tokio::fs::try_exists(&path).await.unwrap_or(true);
        write(&path, image.as_bytes()).await?;
        let mut active = self.active.lock();
        let entry =
            active.entry(image.to_owned()).or_insert(ActivePulls { pulls: 0, has_stale_intent: begun });
        entry.pulls += 1;
        Ok(PullIntent { records: Arc::clone(self), image: image.to_owned() })
    }

    /// Removes the records of images that no longer exist, except those of pulls after `began`.
    pub(super) async fn prune(&self, kept: &BTreeSet<&str>, began: Timestamp) {
        let _held = self.lock.lock().await;
        let Ok(mut entries) = tokio::fs::read_dir(&self.pulled).await else { return };
        while let Ok(Some(entry)) = entries.next_entry().await {
            let path = entry.path();
            let Ok(content) = tokio::fs::read(&path).await else { continue };
            let Ok(record) = serde_json::from_slice::<Record>(&content) else { continue };
            if record.updated < began && !kept.contains(record.image_ref.as_str()) {
                let _ = tokio::fs::remove_file(&path).await;
            }
        }
    }

    async fn read(&self, image_ref: &str) -> io::Result<Option<Record>> {
        match tokio::fs::read(file(&self.pulled, image_ref)).await {
            Ok(content) => Ok(Some(serde_json::from_slice(&content)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn add(
        &self,
        image: &str,
        image_ref: &str,
        hash: Option<String>,
        now: Timestamp,
    ) -> io::Result<()> {
        let known = self.read(image_ref).await.unwrap_or_else(|error| {
            tracing::warn!(%error, image, "cannot read the pull record of an image; it is replaced");
            None
        });
        let mut record = known.unwrap_or_else(|| Record {
            image_ref: image_ref.to_owned(),
            updated: now,
            names: BTreeMap::new(),
        });
        let holders = record.names.entry(bare(image).to_owned()).or_default();
        let changed = match hash {
            _ if holders.everyone => false,
            Some(hash) => holders.hashes.insert(hash),
            None => {
                *holders = AllowedCredentials { everyone: true, hashes: BTreeSet::new() };
                true
            }
        };
        if !changed {
            return Ok(());
        }
        record.updated = now;
        write(&file(&self.pulled, image_ref), &serde_json::to_vec(&record)?).await
    }
}

// === impl Intent ===

impl PullIntent {
    /// Records the result: pulled with credentials of this hash, or anonymously.
    pub(super) async fn succeed(self, image_ref: &str, hash: Option<String>, now: Timestamp) {
        let held = self.records.lock.lock().await;
        let added = self.records.add(&self.image, image_ref, hash, now).await;
        drop(held);
        match added {
            Ok(()) => {
                if let Some(active) = self.records.active.lock().get_mut(&self.image) {
                    active.has_stale_intent = false;
                }
                self.finish().await;
            }
            // The intent stays recorded: other pods must prove their credentials by a pull.
            Err(error) => {
                tracing::warn!(%error, image = self.image, "cannot record the pull of an image");
            }
        }
    }

    /// Removes the intent.
    pub(super) async fn finish(self) {
        let _held = self.records.lock.lock().await;
        let active = |active: &ActivePulls| active.pulls <= 1 && !active.has_stale_intent;
        let over = self.records.active.lock().get(&self.image).is_none_or(active);
        if over {
            let _ = tokio::fs::remove_file(file(&self.records.pulling, &self.image)).await;
        }
    }
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        let mut active = self.records.active.lock();
        if let Some(entry) = active.get_mut(&self.image) {
            entry.pulls -= 1;
            if entry.pulls == 0 {
                active.remove(&self.image);
            }
        }
    }
}

/// The hash of credentials.
pub(super) fn hash(credentials: &PullCredentials) -> String {
    let parts = match credentials {
        PullCredentials::Basic { username, password } => {
            ["basic", username.as_str(), password.expose_secret()]
        }
        PullCredentials::IdentityToken(token) => ["identity", "", token.expose_secret()],
        PullCredentials::RegistryToken(token) => ["registry", "", token.expose_secret()],
    };
    // With their lengths, so that the encoding is unambiguous.
    let text = parts.map(|part| format!("{}:{part}", part.len())).join(",");
    hex(text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.json", hex(name.as_bytes())))
}

fn bare(image: &str) -> &str {
    name::parse(image).map_or(image, |name| name.bare)
}

/// Replaces a file atomically. Only its owner can read it.
async fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).await?;
    }
    let new = path.with_extension("new");
    tokio::fs::write(&new, content).await?;
    tokio::fs::rename(&new, path).await
}

#[cfg(test)]
mod tests;
