//! The cluster whose nodes this process runs, for backends that need more of it than their pods.

use std::{fmt, sync::Arc};

use crate::Client;

/// What a process lends to backends that work with its API server themselves.
#[derive(Clone)]
pub struct UpperCluster {
    /// As the process. Not fenced: who writes with it has to know that the node is his.
    pub client: Client,
    readers: Arc<dyn Fn(&str) -> Client + Send + Sync>,
}

// === impl UpperCluster ===

impl UpperCluster {
    /// `readers` makes the client through which a node reads what its pods refer to.
    pub fn new(client: Client, readers: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self { client, readers: Arc::new(readers) }
    }

    /// The client through which a node reads what its pods refer to: as the node, where the process may.
    pub fn reader(&self, node: &str) -> Client {
        (self.readers)(node)
    }
}

impl fmt::Debug for UpperCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpperCluster").field("server", &self.client.server()).finish_non_exhaustive()
    }
}
