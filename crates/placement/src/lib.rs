//! Placement of pods on virtual nodes.
//!
//! A virtual node stands for many machines. It advertises the sum of what they have, so a pod that fits into the sum may fit on no single
//! machine. The node itself knows: [`ask`] asks it, and [`explain`] says in words what all nodes answered.
//!
//! A virtual node has few of the labels of its machines, and a single host name. [`convert`](mod@convert) moves the parts of a pod that
//! concern these machines into annotations, from which the provider `cluster` restores them in the lower pod, so that pods need no changes to
//! their manifests. [`policy`] prints an admission policy that does the same inside the API server, for Kubernetes 1.36 and later, and
//! [`webhook`] serves it for older versions.
//!
//! Where pods have no gates, kube-scheduler itself can ask the nodes through an [`extender`].
//!
//! The extender and the webhook are served with a [`certificate`] that placement issues, unless there is another one.

mod api_calls;
pub mod ask;
pub mod avoid;
pub mod certificate;
pub mod choose;
mod cluster_state;
mod context;
pub mod controller;
pub mod convert;
pub mod descheduler;
pub mod doctor;
mod effect;
mod eviction;
pub mod explain;
pub mod extender;
mod fit_answers;
mod held_pods;
pub mod metrics;
pub mod names;
mod pod_state;
pub mod policy;
mod query_budget;
mod query_pod;
pub mod rbac;
mod request_body;
pub mod scheduler_config;
pub mod scheduling_gate;
pub mod state_machine;
mod trial_failures;
mod watched_pod;
pub mod webhook;
