//! Pods on a container runtime.
//!
//! A container runtime starts sandboxes and containers; a pod is more than that: init containers in order, sidecars, restarts with
//! back-off, probes, hooks, volumes, logs, a status that everybody knows how to read. That is what a kubelet does between the
//! API's pod and the runtime's containers, and it is done here, once, for every backend that implements [`ContainerBackend`].
//!
//! | module | what it is | touches |
//! |---|---|---|
//! | [`backend`], [`snapshot`], [`parts`] | what a runtime does for us, and what it says about one pod | types only |
//! | [`decide`] | what to do next: pod, snapshot, probe verdicts, back-off and clock in; a plan out | nothing |
//! | [`status`] | the pod's status as a kubelet would write it | nothing |
//! | [`make`] | sandbox and container as the runtime wants them, from the pod's spec | nothing |
//! | [`image`] | pulls: policy, credentials, one pull for many, back-off | the runtime |
//! | [`probe`], [`hook`] | liveness, readiness, startup; postStart, preStop | the runtime, the pod's network |
//! | [`volume`] | the pod's directories: volumes, `/etc/hosts`, termination messages | the file system |
//! | [`log`] | container logs in the runtime's format, read with every option | the file system |
//! | [`machine`] | the machine that pods run on, as a node: size, shortages | the machine's files |
//! | [`written`] | what configurations of such providers are written with | nothing |
//! | [`engine`] | one actor per pod, the relist, adoption, clean-up: the [`Provider`](vk_provider::Provider) | all of it |
//!
//! What is left for later, and said so in the documentation: eviction under node pressure, log rotation, in-place
//! resize of running containers.

pub mod backend;
pub mod decide;
pub mod engine;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod hook;
pub mod image;
pub mod log;
pub mod machine;
pub mod make;
pub mod parts;
pub mod probe;
pub mod settings;
pub mod snapshot;
pub mod status;
pub mod volume;
pub mod written;

pub use self::{backend::ContainerBackend, settings::Settings, snapshot::Snapshot};
