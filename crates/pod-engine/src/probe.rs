//! Probes: liveness, readiness, startup.
//!
//! [`Machine`](machine::Machine) decides, without touching anything, when a container is to be probed and what a result means;
//! [`Prober`] runs one probe; [`Probes`] is what a pod has: a task for each probe, the verdicts, and a number that moves when one
//! changed.

mod command;
mod dial;
mod grpc;
mod http;
pub mod machine;
mod pod;
mod prober;
mod tls;
pub mod verdict;
mod worker;

use std::sync::Arc;

use vk_provider::PodEvent;

pub(crate) use self::http::{Get, Web};
pub use self::{
    pod::Probes,
    prober::{Outcome, Prober},
    verdict::{Kind, Verdict, Verdicts},
};

/// Where events go. Called from tasks: it must not wait.
pub type Tell = Arc<dyn Fn(PodEvent) + Send + Sync>;

#[cfg(test)]
pub(crate) mod tests;
