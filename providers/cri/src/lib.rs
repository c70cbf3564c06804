//! A provider that runs pods on a container runtime of this machine, by version 1 of the Container Runtime Interface.
//!
//! - [`Cri`] is a runtime behind its socket, as the engine wants it ([`vk_pod_engine::ContainerBackend`]).
//! - [`CriFactory`] opens the provider `cri` from its configuration.
//!
//! The wire is in [`proto`], made from a file of ours that declares what we use.

mod client;
mod config;
mod convert;
pub mod doctor;
mod factory;
mod fault;
pub mod proto;
mod socket;

pub use self::{
    client::{Cri, Limits},
    config::Settings,
    factory::CriFactory,
    fault::RpcError,
    socket::{SOCKETS, find},
};
