//! A provider that runs pods as containers of this machine, with no daemon and nothing installed.
//!
//! | module | what it is |
//! |---|---|
//! | [`factory`], [`config`], [`level`], [`doctor`] | opens the provider `local`; which isolation this machine allows, and why not a higher one |
//! | [`backend`] | sandboxes and containers as the engine wants them ([`vk_pod_engine::ContainerBackend`]) |
//! | [`spec`], [`cgroup`] | a container as the OCI runtime wants it; limits and usage |
//! | [`shim`] | the processes beside ours: one that supervises each container, and short-lived ones that make them |
//! | [`image`] | images: pulled or imported, unpacked, kept by their content |
//! | [`network`], [`namespace`] | a network of its own for each pod |
//! | [`demo`] | an image of the machine's own busybox |
//! | [`sys`] | what the kernel and the C library offer and no crate wraps |

pub mod backend;
pub mod cgroup;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod factory;
pub mod image;
pub mod level;
pub mod namespace;
pub mod network;
pub mod shim;
pub mod spec;
pub mod sys;

pub use self::factory::LocalFactory;
