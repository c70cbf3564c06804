//! The provider `cluster`: two real control planes with their controllers, the command between them, and virtual nodes in the
//! lower cluster that keep pods in memory or run containers.

mod admission;
mod capacity;
mod cluster_namespace;
mod cluster_pair;
mod conformance;
mod crash;
mod demo;
mod dependency;
mod detach;
mod error_reporting;
mod lifecycle;
mod object_dump;
#[cfg(feature = "e2e")]
mod older_lower_cluster;
mod outage;
mod permissions;
mod rollout;
mod shared_lower_cluster;
mod sidecar;
mod streams;
