//! The API server, as the controllers use it: a client that reloads its credentials, calls with a time limit and a typed
//! error, watches that never end, and events.
//!
//! This is the only crate whose inside knows kube-rs; a new major version of it is absorbed here.

pub mod access;
pub mod client;
pub mod cluster_id;
pub mod credentials;
pub mod csr;
pub mod error;
pub mod event;
pub mod fence;
mod impersonation;
pub mod instance;
mod key_fingerprint;
pub mod kubeconfig;
pub mod lease;
pub mod metadata_list;
pub mod metrics;
pub mod objects;
pub mod raw;
mod retry_after;
pub mod server_version;
mod silence;
pub mod slim;
mod stall;
mod transport;
pub mod upper_cluster;
pub mod watch;
pub mod watch_pool;

pub use self::{
    access::Identity,
    client::{Client, ClientOptions, ConfigError},
    credentials::Credentials,
    error::{Error, Kind},
    event::Recorder,
    fence::Fence,
    instance::Instance,
    key_fingerprint::key_fingerprint,
    metadata_list::MetadataList,
    metrics::Metrics,
    objects::{Objects, Patch},
    server_version::ServerVersion,
    slim::{DecodeRule, Field, Partial, Slim},
    upper_cluster::UpperCluster,
    watch::{Selector, WatchEvent},
    watch_pool::WatchSlot,
};
