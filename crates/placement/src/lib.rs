//! Placement: pods go to virtual nodes without changes to their manifests.
//!
//! A virtual node stands for many machines. It has few of their labels, and a single host name. [`convert`](mod@convert) moves the parts of a
//! pod that concern these machines into annotations, from which the provider `cluster` restores them in the lower pod. [`policy`] prints an
//! admission policy that does the same inside the API server, for Kubernetes 1.36 and later, and [`webhook`] serves it for older versions.

pub mod convert;
pub mod names;
pub mod policy;
pub mod webhook;
