//! The upper cluster, whose nodes this process runs, for backends that use its API.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;

use crate::{Client, Fence};

/// Access to the upper cluster's API server for backends.
#[derive(Clone)]
pub struct UpperCluster {
    /// The process' own client, for reads. Writes for a node go through a client with the node's [`fence`](Self::fence).
    pub client: Client,
    readers: Arc<dyn Fn(&str) -> Client + Send + Sync>,
    /// The fence of each node's current session.
    fences: Arc<Mutex<HashMap<String, Fence>>>,
}

// === impl UpperCluster ===

impl UpperCluster {
    /// `readers` makes the client through which a node reads what its pods refer to.
    pub fn new(client: Client, readers: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self { client, readers: Arc::new(readers), fences: Arc::default() }
    }

    /// Begins a session of a node: from now on its fence is this new one, which the holder of the node's lease opens. That of the
    /// session before stays as it is, so that nothing left of that session writes again.
    pub fn begin_session(&self, node: &str) -> Fence {
        let fence = Fence::default();
        self.fences.lock().insert(node.to_owned(), fence.clone());
        fence
    }

    /// The fence of a node's current session, for whatever a backend writes on behalf of the node, here or elsewhere. `None` without
    /// a session: nobody but the caller can be running the node.
    pub fn fence(&self, node: &str) -> Option<Fence> {
        self.fences.lock().get(node).cloned()
    }

    /// The client for reading what a node's pods refer to. It impersonates the node if the process may.
    pub fn reader(&self, node: &str) -> Client {
        (self.readers)(node)
    }
}

impl fmt::Debug for UpperCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpperCluster").field("server", &self.client.server()).finish_non_exhaustive()
    }
}
