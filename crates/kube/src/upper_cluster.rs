//! The upper cluster, whose nodes this process runs, for backends that use its API.

use std::{fmt, sync::Arc};

use crate::Client;

/// Access to the upper cluster's API server for backends.
#[derive(Clone)]
pub struct UpperCluster {
    /// The process' own client. Not fenced: callers must make sure that the node is theirs.
    pub client: Client,
    readers: Arc<dyn Fn(&str) -> Client + Send + Sync>,
}

// === impl UpperCluster ===

impl UpperCluster {
    /// `readers` makes the client through which a node reads what its pods refer to.
    pub fn new(client: Client, readers: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self { client, readers: Arc::new(readers) }
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
