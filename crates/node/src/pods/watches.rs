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
    started: bool,
}

// === impl Watches ===

impl Watches {
    /// For a process that begins with so many nodes.
    pub fn new(client: Client, nodes: usize, supervisor: &Supervisor) -> Self {
        let shared = (nodes > OWN).then(|| Shared::new(client.clone()));
        let open = Arc::new(Mutex::new(Open { own: Arc::default(), shared, started: false }));
        Self { client, supervisor: supervisor.clone(), open }
    }

    /// The first nodes have their sights: the watch for all begins, if there is to be one.
    pub fn start(&self) {
        let mut open = self.open.lock();
        if !std::mem::replace(&mut open.started, true)
            && let Some(shared) = &open.shared
        {
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
            if open.started {
                shared.start(&self.supervisor);
            }
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

#[cfg(test)]
mod tests {
    use vk_kube::Metrics;

    use super::*;

    fn watches(nodes: usize) -> Watches {
        // Nobody asks it for anything.
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::fixed(kube::Client::try_from(nowhere).unwrap(), Metrics::default());
        Watches::new(client, nodes, &Supervisor::new())
    }

    fn is_shared(watches: &Watches) -> bool {
        watches.open.lock().shared.is_some()
    }

    #[tokio::test]
    async fn few_nodes_have_watches_of_their_own_and_many_have_one() {
        assert!(!is_shared(&watches(OWN)));
        assert!(is_shared(&watches(OWN + 1)));
    }

    #[tokio::test]
    async fn nodes_that_come_and_go_share_a_watch_only_when_there_are_many_at_once() {
        let watches = watches(1);
        for node in 0..5 * OWN {
            drop(watches.clone().of(&format!("passing-{node}")));
        }
        let few: Vec<Sights> = (0..OWN).map(|node| watches.of(&format!("staying-{node}"))).collect();
        assert!(!is_shared(&watches));
        let more = watches.of("one-more");
        assert!(is_shared(&watches));
        drop((few, more));
    }
}
