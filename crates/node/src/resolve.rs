//! Resolves what pods refer to: environment, files, tokens, pull credentials.
//!
//! A [`ResolverFactory`] reads objects for the pods of one node and creates a [`PodResolver`] for each pod. Nothing is read
//! until a provider asks for it, and then only objects that the pod references, so the permissions of a node are enough.
//! While a pod needs an object, a watch keeps it current.
//!
//! There are two halves. One reads from the API server (`object_cache`, `service_cache`, `tokens`, `volume_claim`,
//! `trust_bundle`). The other builds environments, files and credentials from the fetched objects without I/O (`env`,
//! `files`, `registry`).

mod env;
mod events;
mod expansion;
mod fetched_objects;
mod field_ref;
mod files;
mod object_cache;
mod pod_resolver;
mod references;
mod registry;
mod resource_field_ref;
mod service_cache;
mod service_env;
mod tokens;
mod trust_bundle;
mod volume_claim;
mod volume_stream;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Pod, Secret},
    node::v1::RuntimeClass,
};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{mpsc, watch};
use tracing::debug;
use vk_kube::Client;
use vk_provider::{PodEvent, Quantity, error, resolve::NodeFacts};
use vk_supervisor::{Backoff, Clock, Supervisor};

use self::object_cache::{CacheContext, ObjectCache};
pub use self::{pod_resolver::PodResolver, service_cache::ServiceCache};

/// Size of the event queue. Further events are dropped; they are informational.
const EVENT_QUEUE: usize = 256;

/// Right after a pod was bound, its node may not be allowed to read the pod's references, because the node authorizer lags
/// behind the watch by some milliseconds. For this long, `Forbidden` is retried silently.
const AUTHORIZER_LAG: Duration = Duration::from_secs(5);

/// Backoff while the node authorizer lags behind.
fn authorizer_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(10), Duration::from_secs(1))
}

/// The provider error kind for a failed read.
fn read_error_kind(error: &vk_kube::Error) -> error::Kind {
    match error.kind {
        vk_kube::Kind::Forbidden | vk_kube::Kind::Unauthorized => error::Kind::Denied,
        _ => error::Kind::Unavailable,
    }
}

/// Limits of watches and reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of watched objects per node. The connection has its own limit for all nodes of the process.
    pub watches: usize,
    /// Maximum age of objects that are not watched.
    pub ttl: Duration,
    /// How often the wall clock is checked while waiting for a token to expire: it may be set, and machines may sleep.
    pub clock: Duration,
}

/// Dependencies of a [`ResolverFactory`].
pub struct Sources {
    /// API client with the permissions of the node.
    pub client: Client,
    /// The cluster's services.
    pub services: ServiceCache,
    /// The node's name.
    pub node: String,
    /// The node's addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// The last observed Node object.
    pub observed_node: watch::Receiver<Option<Arc<Node>>>,
    /// The wall clock.
    pub clock: Clock,
    /// Limits.
    pub limits: Limits,
    /// Gauge of watched objects, shared by all nodes.
    pub watches: Gauge,
}

/// Creates the resolvers of one node's pods. Clones share the caches.
#[derive(Clone)]
pub struct ResolverFactory(Arc<Inner>);

struct Inner {
    sources: Sources,
    services: ServiceCache,
    config_maps: ObjectCache<ConfigMap>,
    secrets: ObjectCache<Secret>,
    runtime_classes: ObjectCache<RuntimeClass>,
    watching: Arc<AtomicUsize>,
    events: mpsc::Sender<PodEvent>,
    event_receiver: Mutex<Option<mpsc::Receiver<PodEvent>>>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { watches: 300, ttl: Duration::from_mins(1), clock: Duration::from_secs(30) }
    }
}

// === impl ResolverFactory ===

impl ResolverFactory {
    /// Does not read anything yet. The supervisor owns the reading tasks.
    pub fn new(sources: Sources, supervisor: &Supervisor) -> Self {
        let watching = Arc::new(AtomicUsize::new(0));
        let (events, event_receiver) = mpsc::channel(EVENT_QUEUE);
        let context = CacheContext {
            client: sources.client.clone(),
            limits: sources.limits.clone(),
            supervisor: supervisor.clone(),
            watching: Arc::clone(&watching),
            watch_gauge: sources.watches.clone(),
        };
        Self(Arc::new(Inner {
            config_maps: ObjectCache::new(context.clone()),
            secrets: ObjectCache::new(context.clone()),
            runtime_classes: ObjectCache::new(context),
            services: sources.services.clone(),
            watching,
            events,
            event_receiver: Mutex::new(Some(event_receiver)),
            sources,
        }))
    }

    /// Creates the resolver of a pod.
    pub fn pod(&self, pod: &Arc<Pod>) -> PodResolver {
        PodResolver::new(self.clone(), pod)
    }

    /// Receiver of pod events. Returned once.
    pub fn take_events(&self) -> Option<mpsc::Receiver<PodEvent>> {
        self.0.event_receiver.lock().take()
    }

    /// Number of objects that pods hold.
    pub fn held_objects(&self) -> usize {
        self.0.config_maps.len() + self.0.secrets.len() + self.0.runtime_classes.len()
    }

    /// Number of watched objects.
    pub fn watched_objects(&self) -> usize {
        self.0.watching.load(Ordering::Relaxed)
    }

    fn publish(&self, event: PodEvent) {
        if let Err(error) = self.0.events.try_send(event) {
            debug!(%error, "event queue is full; dropped an event about a reference");
        }
    }

    fn client(&self) -> &Client {
        &self.0.sources.client
    }

    fn clock(&self) -> &Clock {
        &self.0.sources.clock
    }

    fn ttl(&self) -> Duration {
        self.0.sources.limits.ttl
    }

    /// Waits until a wall-clock time, also if the clock is set meanwhile.
    async fn sleep_until(&self, moment: Timestamp) {
        loop {
            let left =
                Duration::try_from(moment.duration_since(self.clock().now())).unwrap_or(Duration::ZERO);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(self.0.sources.limits.clock)).await;
        }
    }

    fn node(&self) -> NodeFacts {
        let node = self.0.sources.observed_node.borrow().clone();
        let allocatable = node.as_ref().and_then(|node| node.status.as_ref()?.allocatable.as_ref());
        let allocatable: BTreeMap<String, Quantity> = allocatable
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)))
            .collect();
        NodeFacts { name: self.0.sources.node.clone(), ips: self.0.sources.ips.clone(), allocatable }
    }
}
