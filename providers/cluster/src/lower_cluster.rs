//! A lower cluster as it is known here: by watches, which several virtual nodes share. Nothing is written.

mod identity;
mod mirror;
mod watches;

use std::{
    fmt,
    sync::{Arc, Weak},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::{Mutex, RwLock};
use vk_kube::{Client, Kind, Objects};
use vk_provider::{Error, Result};
use vk_supervisor::Supervisor;

use self::mirror::{Mirror, SyncState};
pub(crate) use self::{
    identity::{Identity, cluster_id},
    mirror::Key,
};
use crate::{
    names::{NamespaceMapping, Owner},
    node::{NodeShare, PodRequests, VirtualResources, aggregate},
    translate::ClusterClasses,
};

/// A lower cluster. Clones are the same.
#[derive(Clone)]
pub struct LowerCluster(Arc<Inner>);

/// What a [`LowerCluster`] is made of.
pub struct LowerClusterOptions {
    /// A client of the lower cluster.
    pub client: Client,
    /// The upper cluster's id: whose objects are ours.
    pub origin: String,
    /// What the lower cluster is called, if not by its own id.
    pub cluster: Option<String>,
    /// In which namespaces our pods are.
    pub namespaces: NamespaceMapping,
    /// Owns the watches.
    pub supervisor: Supervisor,
}

struct Inner {
    client: Client,
    origin: String,
    mirrors: RwLock<Mirrors>,
    listeners: Mutex<Vec<Weak<dyn LowerClusterListener>>>,
    identity: Identity,
}

#[derive(Default)]
struct Mirrors {
    /// Pods of this upper cluster, in one mirror for each watch.
    ours: Vec<Mirror<Arc<Pod>>>,
    /// What pods of others claim.
    foreign: Mirror<PodRequests>,
    nodes: Mirror<Arc<Node>>,
    priority_classes: Mirror<()>,
    runtime_classes: Mirror<()>,
}

/// Is told what changes below. Called from the watches: it must not wait.
pub(crate) trait LowerClusterListener: Send + Sync {
    /// A pod of this upper cluster looks so now, or is gone and looked so last.
    fn pod_changed(&self, pod: &Arc<Pod>, gone: bool);
    /// Something changed of which virtual nodes are made.
    fn capacity_changed(&self);
}

// === impl LowerCluster ===

impl LowerCluster {
    /// Begins to watch, and does not wait for the cluster to answer.
    pub fn start(options: LowerClusterOptions) -> Self {
        let lower = Self(Arc::new(Inner {
            client: options.client,
            origin: options.origin,
            mirrors: RwLock::default(),
            listeners: Mutex::default(),
            identity: Identity::new(options.cluster),
        }));
        watches::start(&lower, &options.namespaces, &options.supervisor);
        lower
    }

    /// A client of the cluster.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Has somebody told of changes, as long as he is there.
    pub(crate) fn listen(&self, listener: Weak<dyn LowerClusterListener>) {
        self.0.listeners.lock().push(listener);
    }

    /// Whether all is known that has to be: the pods that are ours, and what may be left out only where it is not ours to read.
    /// `Unavailable` says what is missing, in the lower cluster's words.
    pub fn check_synced(&self) -> Result<()> {
        let mirrors = self.0.mirrors.read();
        for mirror in &mirrors.ours {
            require_synced("pods", mirror.sync_state(), false)?;
            if !mirror.is_watch_healthy() {
                return Err(Error::unavailable("the watch of pods of the lower cluster is interrupted"));
            }
        }
        require_synced("nodes", mirrors.nodes.sync_state(), true)?;
        require_synced("pods of others", mirrors.foreign.sync_state(), true)?;
        require_synced("priorityclasses", mirrors.priority_classes.sync_state(), true)?;
        require_synced("runtimeclasses", mirrors.runtime_classes.sync_state(), true)
    }

    /// Whether changes of our pods are heard of.
    pub(crate) fn is_watch_healthy(&self) -> bool {
        self.0.mirrors.read().ours.iter().all(Mirror::is_watch_healthy)
    }

    /// A pod of this upper cluster, by its lower namespace and name.
    pub(crate) fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        let mirrors = self.0.mirrors.read();
        mirrors.ours.iter().find_map(|mirror| mirror.get(key)).map(Arc::clone)
    }

    /// The pods of one virtual node.
    pub(crate) fn pods_of(&self, owner: &Owner) -> Vec<Arc<Pod>> {
        let mirrors = self.0.mirrors.read();
        let all = mirrors.ours.iter().flat_map(Mirror::values);
        all.filter(|pod| owner.owns(&pod.metadata)).map(Arc::clone).collect()
    }

    /// A pod as the cluster has it at this moment, whoever's it is.
    pub(crate) async fn read(&self, (namespace, name): &Key) -> Result<Option<Pod>, vk_kube::Error> {
        let pods: Objects<Pod> = Objects::namespaced(self.0.client.clone(), namespace.clone());
        match pods.get(name).await {
            Ok(pod) => Ok(Some(pod)),
            Err(error) if error.kind == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a node is there and Ready; `None` where nodes are not ours to read.
    pub(crate) fn has_node(&self, name: &str) -> Option<bool> {
        let mirrors = self.0.mirrors.read();
        if *mirrors.nodes.sync_state() != SyncState::Synced {
            return None;
        }
        let node = mirrors.nodes.get(&(String::new(), name.to_owned()));
        Some(node.is_some_and(|node| crate::node::is_ready(node)))
    }

    /// The names of classes that a pod may ask for.
    pub(crate) fn classes(&self) -> ClusterClasses {
        let names = |mirror: &Mirror<()>| mirror.keys().map(|(_, name)| name.clone()).collect();
        let mirrors = self.0.mirrors.read();
        ClusterClasses {
            priority_classes: names(&mirrors.priority_classes),
            runtime_classes: names(&mirrors.runtime_classes),
        }
    }

    /// What a virtual node has of the cluster. Where nodes are not ours to read, it is what the configuration says.
    pub(crate) fn resources(&self, owner: &Owner, share: &NodeShare) -> VirtualResources {
        let mirrors = self.0.mirrors.read();
        if matches!(mirrors.nodes.sync_state(), SyncState::Failed(error) if error.kind == Kind::Forbidden) {
            return VirtualResources::configured(&share.cap);
        }
        let ours = mirrors.ours.iter().flat_map(Mirror::values);
        let others: Vec<PodRequests> =
            ours.filter(|pod| !owner.owns(&pod.metadata)).map(|pod| PodRequests::of(pod, owner)).collect();
        let nodes = mirrors.nodes.values().map(AsRef::as_ref);
        aggregate(nodes, mirrors.foreign.values().chain(&others), share)
    }
}

/// What cannot be read without a right to it is done without, if that is how it may be.
fn require_synced(what: &str, sync_state: &SyncState, optional: bool) -> Result<()> {
    match sync_state {
        SyncState::Synced => Ok(()),
        SyncState::Failed(error) if optional && error.kind == Kind::Forbidden => Ok(()),
        SyncState::Failed(error) => {
            Err(Error::unavailable(format!("read {what} of the lower cluster: {error}")))
        }
        SyncState::NotListed => Err(Error::unavailable(format!("reading {what} of the lower cluster"))),
    }
}

impl fmt::Debug for LowerCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LowerCluster").field("server", &self.0.client.server()).finish_non_exhaustive()
    }
}

// === impl Inner ===

impl Inner {
    fn notify(&self, what: impl Fn(&dyn LowerClusterListener)) {
        let listeners: Vec<Arc<dyn LowerClusterListener>> = {
            let mut listeners = self.listeners.lock();
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.iter().filter_map(Weak::upgrade).collect()
        };
        for listener in &listeners {
            what(listener.as_ref());
        }
    }
}
