//! A lower cluster as it is known here: by watches, which several virtual nodes share. Nothing is written.

mod identity;
mod mirror;
mod watching;

use std::{
    fmt,
    sync::{Arc, Weak},
};

use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::{Mutex, RwLock};
use vk_kube::{Client, Kind, Objects};
use vk_provider::{Error, Result};
use vk_supervisor::Supervisor;

use self::mirror::{Mirror, Standing};
pub(crate) use self::{
    identity::{Identity, id_of},
    mirror::Key,
};
use crate::{
    names::{Namespaces, Owner},
    node::{Claim, Share, Sum, sum},
    translate::Facts,
};

/// A lower cluster. Clones are the same.
#[derive(Clone)]
pub struct Lower(Arc<Inner>);

/// What a [`Lower`] is made of.
pub struct Setup {
    /// A client of the lower cluster.
    pub client: Client,
    /// The upper cluster's id: whose objects are ours.
    pub origin: String,
    /// What the lower cluster is called, if not by its own id.
    pub cluster: Option<String>,
    /// In which namespaces our pods are.
    pub namespaces: Namespaces,
    /// Owns the watches.
    pub supervisor: Supervisor,
}

struct Inner {
    client: Client,
    origin: String,
    mirrors: RwLock<Mirrors>,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    identity: Identity,
}

#[derive(Default)]
struct Mirrors {
    /// Pods of this upper cluster, in one mirror for each watch.
    ours: Vec<Mirror<Arc<Pod>>>,
    /// What pods of others claim.
    foreign: Mirror<Claim>,
    nodes: Mirror<Arc<Node>>,
    priority_classes: Mirror<()>,
    runtime_classes: Mirror<()>,
}

/// Is told what changes below. Called from the watches: it must not wait.
pub(crate) trait Listener: Send + Sync {
    /// A pod of this upper cluster looks so now, or is gone and looked so last.
    fn pod(&self, pod: &Arc<Pod>, gone: bool);
    /// Something changed of which virtual nodes are made.
    fn ground(&self);
}

// === impl Lower ===

impl Lower {
    /// Begins to watch, and does not wait for the cluster to answer.
    pub fn start(setup: Setup) -> Self {
        let lower = Self(Arc::new(Inner {
            client: setup.client,
            origin: setup.origin,
            mirrors: RwLock::default(),
            listeners: Mutex::default(),
            identity: Identity::new(setup.cluster),
        }));
        watching::start(&lower, &setup.namespaces, &setup.supervisor);
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
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.0.listeners.lock().push(listener);
    }

    /// Whether all is known that has to be: the pods that are ours, and what may be left out only where it is not ours to read.
    /// `Unavailable` says what is missing, in the lower cluster's words.
    pub fn known(&self) -> Result<()> {
        let mirrors = self.0.mirrors.read();
        for mirror in &mirrors.ours {
            needed("pods", mirror.standing(), false)?;
            if !mirror.is_heard() {
                return Err(Error::unavailable("the watch of pods of the lower cluster is interrupted"));
            }
        }
        needed("nodes", mirrors.nodes.standing(), true)?;
        needed("pods of others", mirrors.foreign.standing(), true)?;
        needed("priorityclasses", mirrors.priority_classes.standing(), true)?;
        needed("runtimeclasses", mirrors.runtime_classes.standing(), true)
    }

    /// Whether changes of our pods are heard of.
    pub(crate) fn is_heard(&self) -> bool {
        self.0.mirrors.read().ours.iter().all(Mirror::is_heard)
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
        if *mirrors.nodes.standing() != Standing::Whole {
            return None;
        }
        let node = mirrors.nodes.get(&(String::new(), name.to_owned()));
        Some(node.is_some_and(|node| crate::node::is_ready(node)))
    }

    /// The names of classes that a pod may ask for.
    pub(crate) fn facts(&self) -> Facts {
        let names = |mirror: &Mirror<()>| mirror.keys().map(|(_, name)| name.clone()).collect();
        let mirrors = self.0.mirrors.read();
        Facts {
            priority_classes: names(&mirrors.priority_classes),
            runtime_classes: names(&mirrors.runtime_classes),
        }
    }

    /// What a virtual node has of the cluster. Where nodes are not ours to read, it is what the configuration says.
    pub(crate) fn sum(&self, owner: &Owner, share: &Share) -> Sum {
        let mirrors = self.0.mirrors.read();
        if matches!(mirrors.nodes.standing(), Standing::Refused(error) if error.kind == Kind::Forbidden) {
            return Sum::configured(&share.cap);
        }
        let ours = mirrors.ours.iter().flat_map(Mirror::values);
        let others: Vec<Claim> =
            ours.filter(|pod| !owner.owns(&pod.metadata)).map(|pod| Claim::of(pod, owner)).collect();
        let nodes = mirrors.nodes.values().map(AsRef::as_ref);
        sum(nodes, mirrors.foreign.values().chain(&others), share)
    }
}

/// What cannot be read without a right to it is done without, if that is how it may be.
fn needed(what: &str, standing: &Standing, optional: bool) -> Result<()> {
    match standing {
        Standing::Whole => Ok(()),
        Standing::Refused(error) if optional && error.kind == Kind::Forbidden => Ok(()),
        Standing::Refused(error) => {
            Err(Error::unavailable(format!("read {what} of the lower cluster: {error}")))
        }
        Standing::Unread => Err(Error::unavailable(format!("reading {what} of the lower cluster"))),
    }
}

impl fmt::Debug for Lower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lower").field("server", &self.0.client.server()).finish_non_exhaustive()
    }
}

// === impl Inner ===

impl Inner {
    fn tell(&self, what: impl Fn(&dyn Listener)) {
        let listeners: Vec<Arc<dyn Listener>> = {
            let mut listeners = self.listeners.lock();
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.iter().filter_map(Weak::upgrade).collect()
        };
        for listener in &listeners {
            what(listener.as_ref());
        }
    }
}
