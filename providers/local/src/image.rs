//! Images: pulled or imported, unpacked, and stored by content.
//!
//! | module | purpose |
//! |---|---|
//! | `store` | the image store, shared by several processes |
//! | `pull` | pulls from registries |
//! | `import` | imports from archives |
//! | [`unpack`] | unpacks layers into directories |
//! | `name`, `digest`, `manifest`, `platform` | image names, digests, manifests and platforms |
//!
//! Compressed layers are not kept: a layer is downloaded into a temporary file and unpacked from it, and its digests are
//! verified before it becomes visible. Unpacked layers are named by their chain id (their content and that of all layers below), so that
//! images share them. A process that can name a layer by its digest is assumed to have access to it, as in containerd.

mod digest;
mod error;
mod import;
mod manifest;
mod name;
mod platform;
mod pull;
mod store;
#[cfg(test)]
mod testing;
pub mod unpack;

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use oci_spec::image::ImageConfiguration;
use vk_pod_engine::backend::Image;

pub use self::{
    digest::Digest,
    error::{Error, Kind, Result},
    name::ImageName,
    store::{RemovedImage, Store},
    unpack::{DiskUsage, ImageLimits, LayerFormat},
};

/// Settings of an image store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Size limits.
    pub limits: ImageLimits,
    /// Time limits of pulls.
    pub pull_limits: PullLimits,
    /// Registries (`host` or `host:port`) that are accessed by plain HTTP. Those on the loopback address always are.
    pub plain_http: Vec<String>,
    /// How layers are stored; detected if `None`.
    pub layer_format: Option<LayerFormat>,
}

/// Time limits of pulls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullLimits {
    /// The time in which a registry must send a complete manifest, config or token.
    pub document_time: Duration,
    /// The time in which the layers of a pull must progress...
    pub progress_time: Duration,
    /// ...by this number of bytes.
    pub progress_bytes: u64,
}

/// The result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledImage {
    /// The image id: the digest of its config.
    pub id: String,
    /// The repository with the digest that the registry has for the name.
    pub reference: String,
}

/// An image in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredImage {
    /// The image id: the digest of its config.
    pub id: String,
    /// Full names with tags.
    pub tags: Vec<String>,
    /// Full names with digests.
    pub digests: Vec<String>,
    /// Compressed size in bytes, as registries count.
    pub size: u64,
    /// The image config.
    pub config: ImageConfiguration,
    /// Directories of the unpacked layers, lowest first. Read-only.
    pub layers: Vec<PathBuf>,
    /// Creation time from the image config.
    pub created: Option<Timestamp>,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self {
            document_time: Duration::from_mins(1),
            progress_time: Duration::from_mins(5),
            progress_bytes: 1024 * 1024,
        }
    }
}

impl StoredImage {
    /// Converts it for the engine.
    pub fn to_engine(&self) -> Image {
        let user = self.config.config().as_ref().and_then(|config| config.user().as_deref());
        let user = user.unwrap_or_default().split(':').next().unwrap_or_default();
        let uid = user.parse().ok();
        Image {
            id: self.id.clone(),
            tags: self.tags.clone(),
            digests: self.digests.clone(),
            size: self.size,
            uid,
            username: if uid.is_some() { String::new() } else { user.to_owned() },
            pinned: false,
        }
    }
}
