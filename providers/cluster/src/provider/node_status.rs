//! What the virtual node offers and how it is described in the upper cluster.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use vk_provider::{
    NodeTemplate,
    node::{Condition, ConditionStatus},
};
use vk_supervisor::task;

use super::VirtualNode;
use crate::{
    names::{CLUSTER, CLUSTER_ID, REACHABLE},
    node::{VirtualResources, describe},
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
}

// === impl NodeStatus ===

impl Default for NodeStatus {
    fn default() -> Self {
        Self { resources: Mutex::default(), capacity_changed: Arc::default(), changes: watch::Sender::new(0) }
    }
}

impl NodeStatus {
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
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
