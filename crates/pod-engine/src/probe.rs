//! PodProbes: liveness, readiness, startup.
//!
//! [`ProbeTracker`](tracker::ProbeTracker) decides when a container is probed and what an outcome means, without I/O; [`Prober`] runs one
//! probe; [`PodProbes`] has a task for each probe of a pod and their results.

mod connection;
mod exec;
mod grpc;
mod http;
mod pod_probes;
mod prober;
pub mod result;
mod tls;
pub mod tracker;
mod worker;

use std::sync::Arc;

use vk_provider::PodEvent;

pub(crate) use self::http::{HttpClient, HttpGet};
pub use self::{
    pod_probes::PodProbes,
    prober::{ProbeOutcome, Prober},
    result::{ProbeKind, ProbeResult, ProbeResults},
};

/// Records an event. Called from tasks: it must not block.
pub type EventRecorder = Arc<dyn Fn(PodEvent) + Send + Sync>;

#[cfg(test)]
pub(crate) mod tests;
