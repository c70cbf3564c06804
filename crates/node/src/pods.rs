//! The pod controller: brings the provider to what the API server wants, and the API server to what the provider has.
//!
//! - `worker` decides about one pod; it is composed of small state machines.
//! - `reconciler` owns the workers of a node and what they share. It is synchronous: inputs in, effects out.
//! - `driver` feeds the reconciler from watches, the provider and the clock, and executes its effects.
//!
//! A seeded simulation runs the same reconciler against a model of the API server and the provider.

pub mod admission;
mod container_events;
mod digest;
mod driver;
mod event_queue;
mod fingerprint;
mod orphans;
pub mod pod_store;
mod policy;
mod reconciler;
pub mod shared_trial_watch;
pub mod shared_watch;
pub mod status;
pub mod trial;
pub mod watch;
pub mod watch_audit;
pub mod watch_pool;
mod worker;
mod write_permits;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch as latest;
use vk_kube::Client;
use vk_provider::Provider;
use vk_supervisor::Clock;

use self::{pod_store::PodStore, watch::PodWatch, watch_audit::AuditFailure};
use crate::resolve::ResolverFactory;

pub use self::policy::Policy;

/// Everything that a pod controller needs.
pub struct Controller {
    /// The node's name.
    pub node: String,
    /// The provider that runs the pods.
    pub provider: Arc<dyn Provider>,
    /// The API server.
    pub client: Client,
    /// Policies.
    pub policy: Policy,
    /// The pods of the node.
    pub pod_watch: PodWatch,
    /// The pods on trial on the node; `None` if it takes none.
    pub trial_watch: Option<PodWatch>,
    /// The pods for other readers in the process. It is filled from `pod_watch`, and from what the API server answers to
    /// writes, so that a pod is held once.
    pub pod_store: PodStore,
    /// The newest version of the Node, for admission.
    pub node_object: latest::Receiver<Option<Arc<Node>>>,
    /// Publishes that the audit of the watch fails, and since when it does not.
    pub audit_failure: latest::Sender<Option<Arc<AuditFailure>>>,
    /// Resolves what pods refer to.
    pub resolvers: ResolverFactory,
    /// The wall clock.
    pub clock: Clock,
}
