//! A real Kubernetes control plane as a value, the conformance suite for providers, and the few words tests need around
//! them.
//!
//! [`ControlPlane`] starts etcd and kube-apiserver, and on request the controller-manager and the
//! scheduler, on free loopback ports. Everything it started ends with the process that started it, however
//! that process ends. Integration tests share one per test binary ([`ControlPlane::shared`]); the `dev`
//! command of the binary starts its own.
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
//! [`peer`] does the same with a container runtime, a kubelet and a registry, and [`corpus`] compares what kubelets do with pods.
//!
//! [`conformance!`] holds a provider to the contract with one line, without a control plane: see [`mod@conformance`].

pub mod conformance;
pub mod control_plane;
pub mod corpus;
mod eventually;
mod kubectl;
pub mod matrix;
pub mod peer;
mod process;
mod usage;

pub use control_plane::ControlPlane;
pub use eventually::eventually;
pub use kubectl::{Output, kubectl};
pub use process::Process;
pub use usage::Usage;
