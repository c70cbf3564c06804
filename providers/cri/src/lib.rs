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
mod machine;
mod node;
pub mod proto;
mod socket;

pub use self::{
    client::{Cri, Limits},
    config::{Reserved, Settings},
    factory::CriFactory,
    fault::RpcError,
    machine::Machine,
    socket::{SOCKETS, find},
};
