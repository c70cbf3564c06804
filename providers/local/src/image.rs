//! Images: pulled or imported, unpacked, kept by their content.
//!
//! | module | what it is |
//! |---|---|
//! | `store` | the directory that holds them, for several processes at once |
//! | `pull` | from registries |
//! | `import` | from archives |
//! | [`unpack`] | layers become directories |
//! | `name`, `digest`, `manifest`, `platform` | what images are called, what they consist of, and for which machines they are |
//!
//! A compressed layer is not kept: it is unpacked while it comes in, and its sums are compared before anybody sees it. What names an
//! unpacked layer is its content and that of all below it, so that images share what they have in common. Whoever can name a layer
//! by its sum is taken to have it, as in containerd.

#[cfg(test)]
mod craft;
mod digest;
mod error;
mod import;
mod manifest;
mod name;
mod platform;
mod pull;
mod store;
pub mod unpack;

use std::path::PathBuf;

use jiff::Timestamp;
use oci_spec::image::ImageConfiguration;
use vk_pod_engine::backend::Image;

pub use self::{
    digest::Digest,
    error::{Error, Kind, Result},
    name::{Name, normalise},
    store::{Removed, Store},
    unpack::{Form, Limits, Usage},
};

/// How a store is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What is the most that is taken in.
    pub limits: Limits,
    /// Registries, as `host` or `host:port`, that are reached by HTTP without TLS. Those on this machine's own loopback always are.
    pub plain_http: Vec<String>,
    /// How layers are kept; found out where it is not said.
    pub form: Option<Form>,
}

/// What a pull brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The image's id: `sha256:` and the sum of its configuration.
    pub id: String,
    /// The repository with the digest that its registry has for the name.
    pub reference: String,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// `sha256:` and the sum of its configuration.
    pub id: String,
    /// Names with tags, in full.
    pub tags: Vec<String>,
    /// Names with digests, in full.
    pub digests: Vec<String>,
    /// Bytes, compressed, as registries count.
    pub size: u64,
    /// What it starts, as whom, and all else that it says about itself.
    pub config: ImageConfiguration,
    /// Its unpacked layers, lowest first. For reading only.
    pub layers: Vec<PathBuf>,
    /// When it was made, by its own account.
    pub created: Option<Timestamp>,
}

impl Stored {
    /// What the engine wants to know.
    pub fn engine(&self) -> Image {
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
