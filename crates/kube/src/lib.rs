//! The API server, as the controllers use it: a client that reloads its credentials, calls with a time limit and a typed
//! error, watches that never end, and events.
//!
//! This is the only crate whose inside knows kube-rs; a new major version of it is absorbed here.

pub mod access;
pub mod client;
pub mod csr;
pub mod error;
pub mod event;
pub mod fence;
mod gate;
mod guise;
pub mod identity;
pub mod kubeconfig;
pub mod lane;
pub mod lean;
pub mod metrics;
pub mod objects;
pub mod open;
mod pause;
pub mod survey;
mod transport;
pub mod upper;
pub mod version;
pub mod watch;

pub use self::{
    client::{Client, ConfigError, Source},
    error::{Error, Kind},
    event::Recorder,
    fence::Fence,
    identity::Identity,
    lane::Lane,
    lean::Lean,
    metrics::Metrics,
    objects::{Objects, Patch},
    survey::Survey,
    upper::Upper,
    version::Version,
    watch::{Change, Selector},
};
