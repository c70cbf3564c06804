//! Placement of pods on virtual nodes.
//!
//! A virtual node stands for many machines. It advertises the sum of what they have, so a pod that fits into the sum may fit on no single
//! machine. The node itself knows: [`ask`] asks it, and [`explain`] says in words what all nodes answered.
//!
//! A virtual node has few of the labels of its machines, and a single host name. [`convert`](mod@convert) moves the parts of a pod that
//! concern these machines into annotations, from which the provider `cluster` restores them in the lower pod, so that pods need no changes to
//! their manifests. [`policy`] prints an admission policy that does the same inside the API server, for Kubernetes 1.36 and later, and
//! [`webhook`] serves it for older versions.

pub mod ask;
pub mod convert;
pub mod explain;
pub mod names;
pub mod policy;
pub mod webhook;
