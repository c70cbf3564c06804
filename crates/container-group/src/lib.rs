//! Pods on a cloud's container groups.
//!
//! Many clouds offer the same thing: a named group of containers with tags, created asynchronously, polled, deleted asynchronously. A
//! backend translates a pod into a group and makes the calls: see [`GroupBackend`]. This crate does the rest, once for all clouds.
//!
//! | module | what it is | touches |
//! |---|---|---|
//! | [`backend`] | the interface of a cloud: what an author of a backend implements | types only |
//! | [`budget`] | the rate of calls, shared by the nodes of an account | time |
//! | `cloud` | HTTP client, request signing and credentials of a cloud's API (feature `cloud`) | network, clock |
//! | [`engine`] | the [`Provider`](vk_provider::Provider): calls, publishing, logs, usage | the cloud |
//! | `conformance`, `fake` | the suite for a backend, and a cloud in memory (feature `fake`) | nothing |
//! | [`identity`] | names, tags, idempotency tokens, hashes of specs | nothing |
//! | [`lifecycle`] | the groups of one pod, as a state machine | nothing |
//! | [`plan`] | helpers for the translation: sizes, files, registries, probes, field policy | nothing |
//! | [`poll`] | when to ask the cloud, and what | nothing |
//! | [`reconciler`] | all groups of a node: inputs in, effects out | nothing |
//! | [`status`] | the pod status as a kubelet writes it | nothing |

pub mod backend;
pub mod budget;
#[cfg(feature = "cloud")]
pub mod cloud;
#[cfg(any(test, feature = "fake"))]
pub mod conformance;
pub mod engine;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod identity;
pub mod lifecycle;
pub mod plan;
pub mod poll;
pub mod reconciler;
pub mod status;

pub use self::backend::{Caps, GroupBackend};

/// The code of the guide is compiled.
#[cfg(all(doctest, feature = "fake"))]
#[doc = include_str!("../../../docs/guide/write-a-group-backend.md")]
struct Guide;
