//! What the virtual node offers and how it is described in the upper cluster.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::warn;
use vk_provider::{
    EventKind, NodeChange, NodeTemplate,
    node::{Condition, ConditionStatus},
};
use vk_supervisor::task;

use super::VirtualNode;
use crate::{
    names::{CLUSTER, CLUSTER_ID, REACHABLE},
    node::{NO_ELIGIBLE_NODES, VirtualResources, describe},
};

/// Minimum interval between two computations of the resources.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The resources of the virtual node and the signals of their changes.
#[derive(Debug)]
pub(super) struct NodeStatus {
    resources: Mutex<Arc<VirtualResources>>,
    /// Notified when lower nodes or pods change.
    capacity_changed: Arc<Notify>,
    /// Incremented when the description of the node changes.
    changes: watch::Sender<u64>,
    /// Why no lower node counts.
    why_no_nodes: watch::Sender<Option<String>>,
}

// === impl NodeStatus ===

impl Default for NodeStatus {
    fn default() -> Self {
        Self {
            resources: Mutex::default(),
            capacity_changed: Arc::default(),
            changes: watch::Sender::new(0),
            why_no_nodes: watch::Sender::new(None),
        }
    }
}

impl NodeStatus {
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// An event on the node whenever no lower node counts, or for other reasons than before.
    pub(super) fn events(&self) -> impl Stream<Item = NodeChange> + Send + use<> {
        let mut changed = self.why_no_nodes.subscribe();
        // What is known already is news to a new session.
        changed.mark_changed();
        stream::unfold(changed, |mut changed| async move {
            loop {
                changed.changed().await.ok()?;
                let why = changed.borrow_and_update().clone();
                if let Some(message) = why {
                    let reason = NO_ELIGIBLE_NODES.to_owned();
                    break Some((NodeChange::Event { kind: EventKind::Warning, reason, message }, changed));
                }
            }
        })
    }

    /// Lower nodes or pods changed: the resources are computed again soon.
    pub(super) fn capacity_changed(&self) {
        self.capacity_changed.notify_one();
    }

    /// The description of the node changed: the core has to ask for it.
    pub(super) fn mark_changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

// === impl VirtualNode ===

impl VirtualNode {
    /// Computes the resources of the node from the current state of the lower cluster.
    pub(super) fn update_resources(&self) {
        let resources = Arc::new(self.lower.resources(&self.owner, &self.settings.share));
        let before = std::mem::replace(&mut *self.node_status.resources.lock(), Arc::clone(&resources));
        if before != resources {
            self.node_status.mark_changed();
        }
        // Before the first list, nothing is known about nodes.
        let why = resources.why_no_nodes().filter(|_| self.lower.check_synced().is_ok());
        self.node_status.why_no_nodes.send_if_modified(|known| {
            let changed = *known != why;
            if let Some(why) = why.as_ref().filter(|_| changed) {
                warn!(node = self.owner.node, "the virtual node offers nothing: {why}");
            }
            known.clone_from(&why);
            changed
        });
    }

    pub(super) fn describe(&self, template: &mut NodeTemplate) {
        let info = self.lower.identity().info();
        let resources = Arc::clone(&self.node_status.resources.lock());
        describe(&resources, &info.cluster, &info.version, template);
        if info.cluster.is_empty() {
            for key in [CLUSTER, CLUSTER_ID] {
                template.labels.remove(key);
            }
        }
        let error = self.health.error();
        let (status, reason) = match &error {
            None => (ConditionStatus::True, "LowerClusterAnswers"),
            Some(_) => (ConditionStatus::False, "LowerClusterSilent"),
        };
        let server = self.lower.client().server();
        let message = error.map_or_else(|| format!("{server} answers"), |why| format!("{server}: {why}"));
        template.set_condition(Condition {
            kind: REACHABLE.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
        });
    }
}

/// Spawns the task that computes the resources again after each change of the lower cluster.
pub(super) fn spawn_updates(node: &Arc<VirtualNode>) {
    let (weak, supervisor) = (Arc::downgrade(node), node.supervisor.clone());
    let guard = supervisor.clone();
    supervisor.spawn("resources of the virtual node", task::Kind::Work, async move {
        tokio::select! {
            () = run(weak) => {}
            () = guard.stopping() => {}
        }
    });
}

async fn run(node: Weak<VirtualNode>) {
    let mut last: Option<Instant> = None;
    loop {
        if let Some(last) = last {
            tokio::time::sleep_until(last + MIN_INTERVAL).await;
        }
        let Some(node) = node.upgrade() else { return };
        last = Some(Instant::now());
        node.update_resources();
        let changed = Arc::clone(&node.node_status.capacity_changed);
        drop(node);
        changed.notified().await;
    }
}
