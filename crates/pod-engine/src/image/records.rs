//! Who pulled what: one file per image, so that it survives restarts.
//!
//! Before a pull its name is written down, and after it the image and the credentials that were good for it. An image of which
//! nothing is written was there before us and is open to all; one whose pull was begun and of which no end is written is open to
//! nobody until a pull succeeds. Credentials are kept as hashes.

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

/// The records of one node.
#[derive(Debug)]
pub(super) struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Held while files are read or written.
    lock: tokio::sync::Mutex<()>,
    /// Pulls that are under way, by image.
    underway: Mutex<HashMap<String, Underway>>,
}

#[derive(Debug, Default)]
struct Underway {
    pulls: usize,
    /// Whether an earlier pull was begun of which nobody knows how it ended: then a failure says nothing about the image.
    doubt: bool,
}

/// Who may use an image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody: it was there before us, or can be had without credentials.
    Everyone,
    /// Who has credentials with one of these hashes.
    Holders(BTreeSet<String>),
    /// Nobody knows: it has to be pulled to find out.
    Unknown,
}

/// A pull that is under way. Left alone it stays written down, and nobody gets the image for nothing.
#[derive(Debug)]
pub(super) struct Intent {
    records: Arc<Records>,
    image: String,
}

/// An image that was pulled.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    image_ref: String,
    updated: Timestamp,
    /// By name without tag and digest: two repositories can hold the same image, and not for the same people.
    names: BTreeMap<String, Holders>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Holders {
    everyone: bool,
    hashes: BTreeSet<String>,
}

// === impl Records ===

impl Records {
    pub(super) fn new(folder: &Path) -> Arc<Self> {
        Arc::new(Self {
            pulling: folder.join("pulling"),
            pulled: folder.join("pulled"),
            lock: tokio::sync::Mutex::default(),
            underway: Mutex::default(),
        })
    }

    /// Who may use this image, which is there under this reference.
    pub(super) async fn access(&self, image: &str, image_ref: &str) -> Access {
        let _held = self.lock.lock().await;
        match self.read(image_ref).await {
            Ok(Some(record)) => match record.names.get(bare(image)) {
                Some(holders) if holders.everyone => Access::Everyone,
                Some(holders) if !holders.hashes.is_empty() => Access::Holders(holders.hashes.clone()),
                _ => Access::Unknown,
            },
            Ok(None) => {
                let begun = self.underway.lock().contains_key(image)
                    || tokio::fs::try_exists(file(&self.pulling, image)).await.unwrap_or(true);
                if begun { Access::Unknown } else { Access::Everyone }
            }
            Err(error) => {
                tracing::warn!(%error, image, "cannot read who pulled an image: it is pulled again to find out");
                Access::Unknown
            }
        }
    }

    /// Writes down that a pull begins.
    pub(super) async fn begin(self: &Arc<Self>, image: &str) -> io::Result<Intent> {
        let _held = self.lock.lock().await;
        let path = file(&self.pulling, image);
        let begun = tokio::fs::try_exists(&path).await.unwrap_or(true);
        put(&path, image.as_bytes()).await?;
        let mut underway = self.underway.lock();
        let entry = underway.entry(image.to_owned()).or_insert(Underway { pulls: 0, doubt: begun });
        entry.pulls += 1;
        Ok(Intent { records: Arc::clone(self), image: image.to_owned() })
    }

    /// Forgets images that are gone, except those that were pulled after `began`.
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
            tracing::warn!(%error, image, "cannot read who pulled an image before: it is written anew");
            None
        });
        let mut record = known.unwrap_or_else(|| Record {
            image_ref: image_ref.to_owned(),
            updated: now,
            names: BTreeMap::new(),
        });
        let holders = record.names.entry(bare(image).to_owned()).or_default();
        let news = match hash {
            _ if holders.everyone => false,
            Some(hash) => holders.hashes.insert(hash),
            None => {
                *holders = Holders { everyone: true, hashes: BTreeSet::new() };
                true
            }
        };
        if !news {
            return Ok(());
        }
        record.updated = now;
        put(&file(&self.pulled, image_ref), &serde_json::to_vec(&record)?).await
    }
}

// === impl Intent ===

impl Intent {
    /// The image was pulled: with credentials of this hash, or without any.
    pub(super) async fn pulled(self, image_ref: &str, hash: Option<String>, now: Timestamp) {
        let held = self.records.lock.lock().await;
        let added = self.records.add(&self.image, image_ref, hash, now).await;
        drop(held);
        match added {
            Ok(()) => {
                if let Some(underway) = self.records.underway.lock().get_mut(&self.image) {
                    underway.doubt = false;
                }
                self.end().await;
            }
            // The beginning stays written down: others have to show that their credentials fit.
            Err(error) => {
                tracing::warn!(%error, image = self.image, "cannot write down who pulled an image");
            }
        }
    }

    /// The image was not pulled.
    pub(super) async fn end(self) {
        let _held = self.records.lock.lock().await;
        let underway = |underway: &Underway| underway.pulls <= 1 && !underway.doubt;
        let over = self.records.underway.lock().get(&self.image).is_none_or(underway);
        if over {
            let _ = tokio::fs::remove_file(file(&self.records.pulling, &self.image)).await;
        }
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let mut underway = self.records.underway.lock();
        if let Some(entry) = underway.get_mut(&self.image) {
            entry.pulls -= 1;
            if entry.pulls == 0 {
                underway.remove(&self.image);
            }
        }
    }
}

/// What stands for credentials where they must not be.
pub(super) fn hash(credentials: &PullCredentials) -> String {
    let parts = match credentials {
        PullCredentials::Basic { username, password } => {
            ["basic", username.as_str(), password.expose_secret()]
        }
        PullCredentials::IdentityToken(token) => ["identity", "", token.expose_secret()],
        PullCredentials::RegistryToken(token) => ["registry", "", token.expose_secret()],
    };
    // With their lengths, so that no two can look alike.
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

/// Writes a whole file or nothing, where only we can read it.
async fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).await?;
    }
    let new = path.with_extension("new");
    tokio::fs::write(&new, content).await?;
    tokio::fs::rename(&new, path).await
}

#[cfg(test)]
mod tests;
