//! A provider whose pods live in memory, with a life that can be scripted.
//!
//! It runs nothing and pretends well: pods start, get ready, end and start again as their [`Life`] says, answer logs,
//! exec, attach, port-forward and stats, and calls fail, are slow or hang as their [`Fault`]s say. So it serves demos,
//! benchmarks, simulated clusters and most of all tests.
//!
//! - [`MockFactory`] opens it from a configuration file; [`Mock::builder`] makes one in a test.
//! - [`World`](world::World) is the pods themselves, a state machine; [`Host`] gives it a clock.
//! - [`serve`] offers a host over a socket, so that pods can live in another process and survive the death of ours.
//!
//! One pod is scripted by annotations that begin with [`ANNOTATION_PREFIX`].

mod ability;
mod amount;
mod clock;
mod config;
mod duration;
mod factory;
mod fault;
mod host;
mod inputs;
mod life;
mod link;
mod mock;
mod outbox;
mod provider;
mod remote;
mod server;
mod wire;
pub mod world;

pub use self::{
    clock::Clock,
    config::Settings,
    factory::MockFactory,
    fault::{Call, Fault, Faults},
    host::Host,
    life::{ANNOTATION_PREFIX, Life},
    mock::{Builder, Mock},
    server::serve,
    world::Cidr,
};

/// A hash that is the same in every process, for figures that shall look arbitrary and stay the same (FNV-1a).
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
