//! A provider whose pods exist in memory, with a scripted lifecycle.
//!
//! It runs nothing: pods start, become ready, end and restart as their [`Lifecycle`] says, and support logs, exec, attach,
//! port-forward, stats and fit. Calls fail, are slow or hang as configured by [`Fault`]s. It is made for tests, demos, benchmarks
//! and simulated clusters.
//!
//! - [`MockFactory`] opens it from a configuration; [`Mock::builder`] creates one in a test.
//! - [`PodSimulator`](simulator::PodSimulator) is the state machine of all pods; [`PodHost`] drives it with a clock.
//! - [`serve`] serves a host on a socket, so that pods live in another process and survive a crash of this one.
//!
//! A single pod is scripted by annotations with the prefix [`ANNOTATION_PREFIX`].

mod ability;
mod change_queue;
mod config;
mod connection;
mod explanation;
mod factory;
mod fault;
mod inventory;
mod lifecycle;
mod mock;
mod pod_host;
mod protocol;
mod provider;
mod quantity;
mod remote_host;
mod resolved_inputs;
mod server;
pub mod simulator;
mod time;

pub use vk_supervisor::Clock;

pub use self::{
    ability::fit::FitScript,
    config::Settings,
    explanation::FieldScript,
    factory::MockFactory,
    fault::{Call, Fault, Faults},
    inventory::GroupScript,
    lifecycle::{ANNOTATION_PREFIX, Lifecycle},
    mock::{Builder, Mock},
    pod_host::PodHost,
    server::serve,
    simulator::Cidr,
};

/// The FNV-1a hash, for values that look random and are the same in every process.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
