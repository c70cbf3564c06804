//! A provider whose pods live in memory, with a life that can be scripted.
//!
//! It runs nothing and pretends well: pods start, get ready, end and start again as their [`Lifecycle`] says, answer logs,
//! exec, attach, port-forward and stats, and calls fail, are slow or hang as their [`Fault`]s say. So it serves demos,
//! benchmarks, simulated clusters and most of all tests.
//!
//! - [`MockFactory`] opens it from a configuration file; [`Mock::builder`] makes one in a test.
//! - [`PodSimulator`](simulator::PodSimulator) is the pods themselves, a state machine; [`PodHost`] gives it a clock.
//! - [`serve`] offers a host over a socket, so that pods can live in another process and survive the death of ours.
//!
//! One pod is scripted by annotations that begin with [`ANNOTATION_PREFIX`].

mod ability;
mod change_queue;
mod config;
mod connection;
mod factory;
mod fault;
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
    config::Settings,
    factory::MockFactory,
    fault::{Call, Fault, Faults},
    lifecycle::{ANNOTATION_PREFIX, Lifecycle},
    mock::{Builder, Mock},
    pod_host::PodHost,
    server::serve,
    simulator::Cidr,
};

/// A hash that is the same in every process, for figures that shall look arbitrary and stay the same (FNV-1a).
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
