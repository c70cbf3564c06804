//! A lower cluster as seen through watches, which its virtual nodes share. Nothing is written here.

mod copy_watch;
mod event_watch;
mod identity;
mod mirror;
mod probe;
mod references;
mod snapshot;
mod use_lists;
mod version_audit;
mod watches;

use std::{
    fmt,
    sync::{Arc, Weak},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::{Mutex, RwLock};
use vk_fit::{Snapshot, Uid};
use vk_kube::{Client, Kind, Objects, Selector, Slim};
use vk_provider::{Error, Result};
use vk_supervisor::Supervisor;

pub use self::references::ObjectUse;
pub(crate) use self::{
    copy_watch::CopyListener, event_watch::EventListener, identity::ClusterIdentity, mirror::ObjectKey,
    probe::ProbeCursor,
};
use self::{
    copy_watch::CopyWatch,
    event_watch::EventWatch,
    mirror::{Mirror, SyncState},
    probe::SharedProbe,
    references::References,
    use_lists::UseLists,
};
use crate::{
    copies::diff::CopyKey,
    names::{NamespaceMapping, OwnerId},
    node::{NodeShare, VirtualResources, aggregate},
    translate::ClusterClasses,
};

/// A lower cluster. Clones share state.
#[derive(Clone)]
pub struct LowerCluster(Arc<Inner>);

/// What a [`LowerCluster`] needs.
pub struct LowerClusterOptions {
    /// A client of the lower cluster.
    pub client: Client,
    /// The id of the upper cluster, which is the label of our objects.
    pub origin: String,
    /// The configured name of the lower cluster; `None` to use its id.
    pub cluster: Option<String>,
    /// The namespaces of our pods.
    pub namespaces: NamespaceMapping,
    /// Whether the cluster adds nodes when pods need them.
    pub autoscales: bool,
    /// Owns the watches.
    pub supervisor: Supervisor,
}

struct Inner {
    client: Client,
    origin: String,
    mirrors: RwLock<Mirrors>,
    listeners: Mutex<Vec<Weak<dyn LowerClusterListener>>>,
    identity: ClusterIdentity,
    probe: SharedProbe,
    copies: CopyWatch,
    use_lists: UseLists,
    events: EventWatch,
    namespaces: NamespaceMapping,
    supervisor: Supervisor,
}

#[derive(Default)]
struct Mirrors {
    /// Pods of this upper cluster, one mirror per watch.
    ours: Vec<Mirror<Arc<Pod>>>,
    /// What these pods refer to.
    references: References,
    /// All other pods that are on nodes: their UIDs. What they use there is in the snapshot.
    foreign: Mirror<(), Uid>,
    nodes: Mirror<Arc<Node>>,
    /// The names of the volumes in the snapshot.
    volumes: Mirror<()>,
    /// The names of the quotas in the snapshot, one mirror per watch.
    quotas: Vec<Mirror<()>>,
    /// What all pods use of the nodes.
    snapshot: Snapshot,
    priority_classes: Mirror<()>,
    runtime_classes: Mirror<()>,
}

/// Receives changes of the lower cluster. Called from the watches, so it must not block.
pub(crate) trait LowerClusterListener: Send + Sync {
    /// A pod of this upper cluster changed or was deleted. After a deletion, `pod` is its last state.
    fn pod_changed(&self, pod: &Arc<Pod>, gone: bool);
    /// Something changed that the resources of virtual nodes depend on.
    fn capacity_changed(&self);
    /// The name, id or version of the cluster changed.
    fn identity_changed(&self);
}

// === impl LowerCluster ===

impl LowerCluster {
    /// Starts the watches without waiting for the cluster to answer.
    pub fn start(options: LowerClusterOptions) -> Self {
        let lower = Self(Arc::new(Inner {
            client: options.client,
            origin: options.origin,
            mirrors: RwLock::new(Mirrors {
                snapshot: Snapshot::new(vk_fit::Settings {
                    autoscales: options.autoscales,
                    ..vk_fit::Settings::default()
                }),
                ..Mirrors::default()
            }),
            listeners: Mutex::default(),
            identity: ClusterIdentity::new(options.cluster),
            probe: SharedProbe::default(),
            copies: CopyWatch::default(),
            use_lists: UseLists::default(),
            events: EventWatch::default(),
            namespaces: options.namespaces,
            supervisor: options.supervisor,
        }));
        watches::start(&lower);
        lower
    }

    /// A client of the cluster.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    pub(crate) fn identity(&self) -> &ClusterIdentity {
        &self.0.identity
    }

    /// Registers a listener, which is dropped when its owner is.
    pub(crate) fn listen(&self, listener: Weak<dyn LowerClusterListener>) {
        self.0.listeners.lock().push(listener);
    }

    /// Fails with `Unavailable` unless everything required was listed: the own pods always, other objects unless reading them is
    /// forbidden.
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

    /// A pod of this upper cluster, by its lower namespace and name.
    pub(crate) fn pod(&self, key: &ObjectKey) -> Option<Arc<Pod>> {
        let mirrors = self.0.mirrors.read();
        mirrors.ours.iter().find_map(|mirror| mirror.get(key)).map(Arc::clone)
    }

    /// The pods of one virtual node.
    pub(crate) fn pods_of(&self, owner: &OwnerId) -> Vec<Arc<Pod>> {
        let mirrors = self.0.mirrors.read();
        let all = mirrors.ours.iter().flat_map(Mirror::values);
        all.filter(|pod| owner.owns(&pod.metadata)).map(Arc::clone).collect()
    }

    /// The pods of this upper cluster that refer to an object and have not ended, as the watch shows them.
    pub(crate) fn users(&self, key: &CopyKey) -> Vec<Arc<Pod>> {
        let mirrors = self.0.mirrors.read();
        let find = |pod: &ObjectKey| mirrors.ours.iter().find_map(|mirror| mirror.get(pod)).map(Arc::clone);
        mirrors.references.users(key).filter_map(find).collect()
    }

    /// Whether a pod of this upper cluster, on any of its virtual nodes, uses an object at least like this and has not ended. The API
    /// server is asked only if the watch shows none.
    pub(crate) async fn is_used(&self, key: &CopyKey, by: ObjectUse) -> Result<bool, vk_kube::Error> {
        if self.is_known_to_be_used(key, by) {
            return Ok(true);
        }
        let found = self.0.use_lists.find(&self.0.client, &self.0.origin, key).await?;
        Ok(found.is_some_and(|found| found >= by))
    }

    /// Whether the watch shows a pod of this upper cluster that uses an object at least like this.
    pub(crate) fn is_known_to_be_used(&self, key: &CopyKey, by: ObjectUse) -> bool {
        self.0.mirrors.read().references.is_used(key, by)
    }

    /// Reads any pod from the API server.
    pub(crate) async fn read(&self, (namespace, name): &ObjectKey) -> Result<Option<Pod>, vk_kube::Error> {
        let pods: Objects<Pod> = Objects::namespaced(self.0.client.clone(), namespace.clone());
        match pods.get(name).await {
            Ok(pod) => Ok(Some(pod)),
            Err(error) if error.kind == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a node exists and is Ready; `None` if nodes cannot be read.
    pub(crate) fn has_node(&self, name: &str) -> Option<bool> {
        let mirrors = self.0.mirrors.read();
        if *mirrors.nodes.sync_state() != SyncState::Synced {
            return None;
        }
        let node = mirrors.nodes.get(&(String::new(), name.to_owned()));
        Some(node.is_some_and(|node| crate::node::is_ready(node)))
    }

    /// Reads a node from the API server, for a decision that must not depend on the watch alone. Without the permission, the watch is all
    /// there is.
    pub(crate) async fn refresh_node(&self, name: &str) -> Result<(), vk_kube::Error> {
        let nodes: Objects<Slim<Node>> = Objects::all(self.0.client.clone());
        // A list, because that is permitted for the watch already.
        let selector = Selector { fields: Some(format!("metadata.name={name}")), labels: None };
        let mut found = match nodes.list(&selector).await {
            Ok(list) => list.objects,
            Err(error) if error.kind == Kind::Forbidden => return Ok(()),
            Err(error) => return Err(error),
        };
        watches::replace_node(&self.0, name, found.pop());
        Ok(())
    }

    /// The names of the classes that exist in the cluster.
    pub(crate) fn classes(&self) -> ClusterClasses {
        let names = |mirror: &Mirror<()>| mirror.keys().map(|(_, name)| name.clone()).collect();
        let mirrors = self.0.mirrors.read();
        ClusterClasses {
            priority_classes: names(&mirrors.priority_classes),
            runtime_classes: names(&mirrors.runtime_classes),
        }
    }

    /// The resources of a virtual node. If nodes cannot be read, these are the configured ones.
    pub(crate) fn resources(&self, owner: &OwnerId, share: &NodeShare) -> VirtualResources {
        let mirrors = self.0.mirrors.read();
        if mirrors.nodes.is_forbidden() {
            return VirtualResources::configured(&share.cap);
        }
        let ours = mirrors.ours.iter().flat_map(Mirror::values);
        let own = ours.filter(|pod| owner.owns(&pod.metadata)).filter_map(|pod| pod.metadata.uid.as_deref());
        aggregate(mirrors.nodes.values().map(AsRef::as_ref), &mirrors.snapshot.usage(own), share)
    }
}

/// Fails unless a mirror is synced, or optional and forbidden.
fn require_synced(what: &str, sync_state: &SyncState, optional: bool) -> Result<()> {
    match sync_state {
        SyncState::Synced => Ok(()),
        SyncState::Failed(error) if optional && error.kind == Kind::Forbidden => Ok(()),
        SyncState::Failed(error) => {
            Err(Error::unavailable(format!("list {what} of the lower cluster: {error}")))
        }
        SyncState::NotListed => {
            Err(Error::unavailable(format!("list {what} of the lower cluster: not finished yet")))
        }
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
