//! The pod watches of a process: one per node while there are few, one for all beyond.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use vk_kube::Client;
use vk_supervisor::Supervisor;

use super::{
    shared_watch::SharedPodWatch,
    watch::{PodWatch, of_node},
};

/// The largest number of nodes with watches of their own. Each costs a connection, here and at the API server; a shared one
/// shows every bound pod of the cluster. Ten connections are nothing, and more of them soon cost more than foreign pods.
pub const MAX_OWN: usize = 10;

/// Opens the watches of nodes. Clones share them.
#[derive(Clone)]
pub struct PodWatchPool {
    client: Client,
    supervisor: Supervisor,
    open: Arc<Mutex<OpenWatches>>,
}

struct OpenWatches {
    /// A clone is held by each watch that a node has of its own.
    own: Arc<()>,
    shared: Option<SharedPodWatch>,
    started: bool,
}

// === impl PodWatchPool ===

impl PodWatchPool {
    /// For a process that starts with this number of nodes.
    pub fn new(client: Client, nodes: usize, supervisor: &Supervisor) -> Self {
        let shared = (nodes > MAX_OWN).then(|| SharedPodWatch::new(client.clone()));
        let open = Arc::new(Mutex::new(OpenWatches { own: Arc::default(), shared, started: false }));
        Self { client, supervisor: supervisor.clone(), open }
    }

    /// The first nodes have their watches: the shared watch starts, if there is to be one.
    pub fn start(&self) {
        let mut open = self.open.lock();
        if !std::mem::replace(&mut open.started, true)
            && let Some(shared) = &open.shared
        {
            shared.start(&self.supervisor);
        }
    }

    /// The pods of one node.
    pub fn for_node(&self, node: &str) -> PodWatch {
        let mut open = self.open.lock();
        if let Some(shared) = &open.shared {
            return shared.for_node(node);
        }
        if Arc::strong_count(&open.own) > MAX_OWN {
            let shared = SharedPodWatch::new(self.client.clone());
            let watch = shared.for_node(node);
            if open.started {
                shared.start(&self.supervisor);
            }
            open.shared = Some(shared);
            return watch;
        }
        let counted = (of_node(self.client.clone(), node), Arc::clone(&open.own));
        stream::unfold(counted, |(mut watch, own)| async move {
            let event = watch.next().await?;
            Some((event, (watch, own)))
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use vk_kube::Metrics;

    use super::*;

    fn watches(nodes: usize) -> PodWatchPool {
        // No request is made.
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::fixed(kube::Client::try_from(nowhere).unwrap(), Metrics::default());
        PodWatchPool::new(client, nodes, &Supervisor::new())
    }

    fn is_shared(watches: &PodWatchPool) -> bool {
        watches.open.lock().shared.is_some()
    }

    #[tokio::test]
    async fn few_nodes_have_watches_of_their_own_and_many_have_one() {
        assert!(!is_shared(&watches(MAX_OWN)));
        assert!(is_shared(&watches(MAX_OWN + 1)));
    }

    #[tokio::test]
    async fn nodes_that_come_and_go_share_a_watch_only_when_there_are_many_at_once() {
        let watches = watches(1);
        for node in 0..5 * MAX_OWN {
            drop(watches.clone().for_node(&format!("passing-{node}")));
        }
        let few: Vec<PodWatch> =
            (0..MAX_OWN).map(|node| watches.for_node(&format!("staying-{node}"))).collect();
        assert!(!is_shared(&watches));
        let more = watches.for_node("one-more");
        assert!(is_shared(&watches));
        drop((few, more));
    }
}
