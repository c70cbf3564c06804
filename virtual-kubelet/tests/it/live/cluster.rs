//! One cluster as a node of another: two real control planes with controllers, and the command between them. The lower nodes are virtual
//! nodes too: they keep pods in memory or run containers.

mod admission;
mod capacity;
mod cluster_pair;
mod conformance;
mod crash;
mod dependencies;
mod detach;
mod idle_cost;
mod lifecycle;
mod namespace_client;
mod outage;
mod permissions;
mod placement;
mod rejection;
mod rollout;
mod shared_lower_cluster;
mod sidecar;
mod snapshot;
mod streams;
mod tenants;
#[cfg(feature = "e2e")]
mod version_skew;
mod walkthrough;
