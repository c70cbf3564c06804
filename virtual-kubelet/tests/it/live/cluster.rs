//! One cluster as a node of another: two real control planes with their controllers, the command between them, and below it nodes of
//! its own kind, that keep pods in memory or run containers.

mod admission;
mod capacity;
mod conformance;
mod crash;
mod demo;
mod dependency;
mod detach;
mod dump;
mod lifecycle;
#[cfg(feature = "e2e")]
mod older;
mod outage;
mod refusal;
mod rig;
mod rights;
mod rollout;
mod sharing;
mod side;
mod sidecar;
mod streams;
