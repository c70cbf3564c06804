//! Pods on a container runtime.
//!
//! A container runtime starts sandboxes and containers. A pod is more than that: init containers in order, sidecars, restarts with
//! back-off, probes, hooks, volumes, logs and a status. A kubelet does this between the API's pod and the runtime's containers. This crate
//! does it once, for every backend that implements [`ContainerBackend`].
//!
//! | module | what it is | touches |
//! |---|---|---|
//! | [`backend`], [`snapshot`], [`containers`] | the runtime interface, its state of one pod, the containers of a pod spec | types only |
//! | [`plan`] | the next actions for a pod, from pod, snapshot, probe results, back-off and time | nothing |
//! | [`status`] | the pod status as a kubelet writes it | nothing |
//! | [`spec`] | sandbox and container configurations for the runtime, built from the pod spec | nothing |
//! | [`image`] | image pulls: policy, credentials, shared pulls, back-off; image garbage collection | the runtime |
//! | [`probe`], [`hook`] | liveness, readiness and startup probes; postStart and preStop hooks | the runtime, the pod's network |
//! | [`volume`] | the pod's directories: volumes, `/etc/hosts`, termination messages | the file system |
//! | [`log`] | container logs in the runtime's format, with every log option | the file system |
//! | [`host`] | the host as a node: capacity, resource pressure | the host's files |
//! | [`cgroup`] | cgroups of the node, its pods and their containers: limits, usage, kill and removal | the host's cgroups |
//! | [`config`] | the configuration keys that providers on this engine share | nothing |
//! | [`engine`] | one task per pod, the relist, adoption, clean-up: the [`Provider`](vk_provider::Provider) | all of it |
//!
//! Not implemented yet: eviction under node pressure, log rotation, in-place resize of running containers.

pub mod backend;
pub mod cgroup;
pub mod config;
pub mod containers;
pub mod engine;
pub mod hook;
pub mod host;
pub mod image;
pub mod log;
pub mod plan;
pub mod probe;
pub mod settings;
pub mod snapshot;
pub mod spec;
pub mod status;
#[cfg(any(test, feature = "fake"))]
pub mod testing;
mod text;
pub mod volume;

pub use self::{backend::ContainerBackend, settings::Settings, snapshot::Snapshot};
