//! Test support: control planes, container runtimes, kubelets, and the conformance suite for providers.
//!
//! Integration tests share control planes ([`ControlPlane::shared`]) and keep to their own namespace and node names. Under `make test` one
//! process starts them for all test binaries; otherwise each test binary starts those that it needs.
//!
//! ```no_run
//! # async fn example() -> Result<(), vk_testing::control_plane::Error> {
//! use vk_testing::ControlPlane;
//!
//! let cluster = ControlPlane::shared().await;
//! let namespace = cluster.namespace("logs").await?;
//! let node = cluster.node_client("worker-1")?;
//! # Ok(()) }
//! ```
//!
//! [`host`] runs a container runtime, a kubelet and a registry, [`corpus`] compares what kubelets do with pods, and [`kubectl_matrix`] runs the
//! kubectl commands that reach into pods.
//!
//! [`conformance!`] checks a provider against the contract, without a control plane: see [`mod@conformance`].

pub mod cloud;
pub mod conformance;
pub mod corpus;
mod eventually;
pub mod host;
pub mod kubectl_matrix;
mod process;
mod usage;

pub use eventually::eventually;
pub use process::Process;
pub use usage::Usage;
pub use vk_control_plane::{self as control_plane, ControlPlane, Output, kubectl};
