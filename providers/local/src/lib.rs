//! A provider that runs pods as containers on this host, without a daemon or an installed runtime.
//!
//! | module | purpose |
//! |---|---|
//! | [`factory`], [`config`], [`isolation`], [`doctor`] | opens the provider `local`; the isolation that this host allows |
//! | [`backend`] | implements [`vk_pod_engine::ContainerBackend`]: sandboxes and containers |
//! | [`spec`] | OCI runtime specs |
//! | [`shim`] | helper processes: one supervises each container, others create containers |
//! | [`image`] | images: pulled or imported, unpacked, stored by content |
//! | [`network`], [`namespace`] | the pod network |
//! | [`demo`] | a demo image made of the host's busybox |
//! | [`procfs`] | processes as `/proc` shows them |
//! | [`sys`] | system calls that need `unsafe` |

pub mod backend;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod factory;
mod files;
pub mod image;
pub mod isolation;
pub mod namespace;
pub mod network;
pub mod procfs;
pub mod shim;
pub mod spec;
pub mod sys;

pub use self::factory::LocalFactory;
pub use vk_pod_engine::cgroup;
