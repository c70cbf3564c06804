//! Helpers for the translation of a pod into a cloud's request: pure, and shared by the clouds.
//!
//! | module | what it does |
//! |---|---|
//! | [`size`] | from the pod's requests to a size that the cloud offers |
//! | [`files`] | the files of volumes, within the cloud's limits |
//! | [`registry`] | credentials for the registries of the pod's images |
//! | [`probe`] | probes, with an emulation of startup probes |
//! | [`policy`] | what becomes of each field of a pod |
//! | [`explanation`] | all of it, for `virtual-kubelet explain-pod` |
//!
//! They report what the cloud cannot do to [`Diagnostics`], so that a pod is refused with all reasons at once:
//!
//! ```
//! use vk_container_group::{
//!     backend::{Plan, Rejection, ResolvedPod},
//!     plan::{Diagnostics, files::{self, FileLimits}},
//! };
//!
//! fn translate(pod: &ResolvedPod) -> Result<Plan<usize>, Rejection> {
//!     let mut diagnostics = Diagnostics::default();
//!     let volumes = files::volumes(pod, &FileLimits { file: 32 << 10, group: 60 << 10 }, &mut diagnostics);
//!     diagnostics.finish(Plan::new(volumes.len()))
//! }
//! ```

pub mod diagnostics;
pub mod explanation;
pub mod files;
pub mod policy;
pub mod probe;
pub mod registry;
pub mod size;

pub use self::diagnostics::Diagnostics;
