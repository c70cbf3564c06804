//! A provider that runs pods on a container runtime of this host, through version 1 of the Container Runtime Interface.
//!
//! - [`Cri`] is the client of a runtime, and implements the engine's [`vk_pod_engine::ContainerBackend`].
//! - [`CriFactory`] opens the provider `cri` from its configuration.
//!
//! [`proto`] is generated from our own `cri.proto`, which declares the parts of the interface that we use.

mod client;
mod config;
mod convert;
pub mod doctor;
mod error;
mod factory;
pub mod proto;
mod socket;

pub use self::{
    client::{Cri, Limits},
    config::Settings,
    error::RpcError,
    factory::CriFactory,
    socket::{SOCKETS, find},
};
