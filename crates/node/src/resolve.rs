//! What pods refer to: environment, files, tokens, credentials.
//!
//! A [`ResolverFactory`] reads for the pods of one node, and answers for each through its [`PodResolver`]. Nothing is read until a
//! provider asks, and then only what the pod names, so that the rights of a node suffice. What was read is kept current by a
//! watch per object while a pod needs it.
//!
//! The work is in two halves. One reads (`shelf`, `catalogue`, `tokens`, `storage`, `trust`); the other makes an
//! environment or files out of what was read, and touches nothing (`env`, `files`, `registry`).

mod amounts;
mod env;
mod expansion;
mod fields;
mod files;
mod notes;
mod object_cache;
mod objects;
mod pod_resolver;
mod references;
mod registry;
mod service_cache;
mod services;
mod storage;
mod tokens;
mod trust;
mod volume;

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

use self::object_cache::{ObjectCache, Reads};
pub use self::{pod_resolver::PodResolver, service_cache::ServiceCache};

/// Events that wait to be written. More are dropped: they are for people.
const NOTES: usize = 256;

/// Right after a pod was bound, its node may not read what the pod refers to: the authorizer trails the watch by some
/// milliseconds. So long, a refusal is no news.
const TRAILING: Duration = Duration::from_secs(5);

/// How a refusal that is no news is waited out.
fn trailing() -> Backoff {
    Backoff::new(Duration::from_millis(10), Duration::from_secs(1))
}

/// What it means for a provider that the API server did not give an object.
fn unreadable(error: &vk_kube::Error) -> error::Kind {
    match error.kind {
        vk_kube::Kind::Forbidden | vk_kube::Kind::Unauthorized => error::Kind::Denied,
        _ => error::Kind::Unavailable,
    }
}

/// How much is watched, and how often the rest is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Objects that are watched at a time for one node. The connection has its own limit, for all nodes of the process.
    pub watches: usize,
    /// How old what is not watched may be.
    pub ttl: Duration,
    /// How often the wall clock is looked at while a token lives: it may be set, and machines sleep.
    pub clock: Duration,
}

/// All that a library needs.
pub struct Sources {
    /// The API server, with the rights of the node.
    pub client: Client,
    /// The cluster's services.
    pub services: ServiceCache,
    /// The node's name.
    pub node: String,
    /// The node's addresses, primary first.
    pub ips: Vec<IpAddr>,
    /// The Node as it was seen last.
    pub facts: watch::Receiver<Option<Arc<Node>>>,
    /// The wall clock.
    pub clock: Clock,
    /// Limits.
    pub limits: Limits,
    /// Shows how many objects are watched, of all libraries that share it.
    pub watches: Gauge,
}

/// What the pods of one node refer to. Clones are the same library.
#[derive(Clone)]
pub struct ResolverFactory(Arc<Inner>);

struct Inner {
    sources: Sources,
    services: ServiceCache,
    config_maps: ObjectCache<ConfigMap>,
    secrets: ObjectCache<Secret>,
    runtime_classes: ObjectCache<RuntimeClass>,
    watching: Arc<AtomicUsize>,
    notes: mpsc::Sender<PodEvent>,
    heard: Mutex<Option<mpsc::Receiver<PodEvent>>>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { watches: 300, ttl: Duration::from_mins(1), clock: Duration::from_secs(30) }
    }
}

// === impl ResolverFactory ===

impl ResolverFactory {
    /// Reads nothing yet. The tasks that read belong to the supervisor.
    pub fn new(sources: Sources, supervisor: &Supervisor) -> Self {
        let watching = Arc::new(AtomicUsize::new(0));
        let (notes, heard) = mpsc::channel(NOTES);
        let reads = Reads {
            client: sources.client.clone(),
            limits: sources.limits.clone(),
            supervisor: supervisor.clone(),
            watching: Arc::clone(&watching),
            shown: sources.watches.clone(),
        };
        Self(Arc::new(Inner {
            config_maps: ObjectCache::new(reads.clone()),
            secrets: ObjectCache::new(reads.clone()),
            runtime_classes: ObjectCache::new(reads),
            services: sources.services.clone(),
            watching,
            notes,
            heard: Mutex::new(Some(heard)),
            sources,
        }))
    }

    /// Answers for a pod, until closed.
    pub fn pod(&self, pod: &Arc<Pod>) -> PodResolver {
        PodResolver::new(self.clone(), pod)
    }

    /// What people shall hear. Given once.
    pub fn notes(&self) -> Option<mpsc::Receiver<PodEvent>> {
        self.0.heard.lock().take()
    }

    /// How many objects are held by pods.
    pub fn held(&self) -> usize {
        self.0.config_maps.len() + self.0.secrets.len() + self.0.runtime_classes.len()
    }

    /// How many objects are watched.
    pub fn watching(&self) -> usize {
        self.0.watching.load(Ordering::Relaxed)
    }

    fn note(&self, event: PodEvent) {
        if let Err(error) = self.0.notes.try_send(event) {
            debug!(%error, "too many events about references: one is dropped");
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

    /// Waits until the wall clock says so, however it is set meanwhile.
    async fn until(&self, moment: Timestamp) {
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
        let node = self.0.sources.facts.borrow().clone();
        let allocatable = node.as_ref().and_then(|node| node.status.as_ref()?.allocatable.as_ref());
        let allocatable: BTreeMap<String, Quantity> = allocatable
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)))
            .collect();
        NodeFacts { name: self.0.sources.node.clone(), ips: self.0.sources.ips.clone(), allocatable }
    }
}
