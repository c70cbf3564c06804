//! The pod watches of a process: one per node while there are few, one for all beyond.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use vk_kube::Client;
use vk_supervisor::Supervisor;

use super::{
    shared::Shared,
    watch::{Sights, of_node},
};

/// So many nodes have watches of their own. Each costs a connection, here and at the API server; one for all costs none, but
/// shows every bound pod of the cluster. Ten connections are nothing, and more of them soon weigh more than foreign pods.
pub const OWN: usize = 10;

/// Gives nodes their sights. Clones share the watches.
#[derive(Clone)]
pub struct Watches {
    client: Client,
    supervisor: Supervisor,
    open: Arc<Mutex<Open>>,
}

struct Open {
    /// Held by this, and by each watch that a node has of its own.
    own: Arc<()>,
    shared: Option<Shared>,
}

// === impl Watches ===

impl Watches {
    /// For a process that begins with so many nodes.
    pub fn new(client: Client, nodes: usize, supervisor: &Supervisor) -> Self {
        let shared = (nodes > OWN).then(|| Shared::new(client.clone()));
        let open = Arc::new(Mutex::new(Open { own: Arc::default(), shared }));
        Self { client, supervisor: supervisor.clone(), open }
    }

    /// The first nodes have their sights: the watch for all begins, if there is to be one.
    pub fn start(&self) {
        if let Some(shared) = &self.open.lock().shared {
            shared.start(&self.supervisor);
        }
    }

    /// The sights of one node.
    pub fn of(&self, node: &str) -> Sights {
        let mut open = self.open.lock();
        if let Some(shared) = &open.shared {
            return shared.of(node);
        }
        if Arc::strong_count(&open.own) > OWN {
            let shared = Shared::new(self.client.clone());
            let sights = shared.of(node);
            shared.start(&self.supervisor);
            open.shared = Some(shared);
            return sights;
        }
        let counted = (of_node(self.client.clone(), node), Arc::clone(&open.own));
        stream::unfold(counted, |(mut sights, own)| async move {
            let sight = sights.next().await?;
            Some((sight, (sights, own)))
        })
        .boxed()
    }
}
