//! The times in which this process runs a node: one, or with other replicas any number of them, with waiting in between.

use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;
use vk_node::{
    node::{Controller, LeaseConflict, Progress},
    pods,
};
use vk_supervisor::Supervisor;

/// What the terms of one node have in common.
pub(super) struct Terms {
    pub(super) progress: watch::Sender<Progress>,
    /// Stops the node.
    pub(super) supervisor: Supervisor,
    /// How long calls on pods may take to end.
    pub(super) pods_limit: Duration,
    /// Whether other replicas may run the node.
    pub(super) elected: bool,
}

// === impl Terms ===

impl Terms {
    /// Runs the node until the end. When another replica has taken it, or may have, everything that was known of it is
    /// dropped, and new controllers wait for their turn: what the other one did meanwhile is read anew.
    pub(super) async fn serve(
        self,
        begin: impl Fn(watch::Sender<Progress>) -> (Controller, pods::Controller),
    ) -> Result<(), LeaseConflict> {
        loop {
            self.progress.send_replace(Progress::default());
            let (node, pods) = begin(self.progress.clone());
            match self.together(node, pods).await {
                Err(taken) if self.elected && !self.supervisor.is_stopping() => {
                    warn!(reason = %taken, "this replica does not lead the node any more: standing by");
                }
                ended => return ended,
            }
        }
    }

    /// Runs the controllers of one node. Pods are not touched before the node is ours and registered; and when the end comes,
    /// calls on pods end first, because the node's last word is to give its lease back.
    async fn together(&self, node: Controller, pods: pods::Controller) -> Result<(), LeaseConflict> {
        let (supervisor, limit) = (&self.supervisor, self.pods_limit);
        let mut progress = self.progress.subscribe();
        let node_supervisor = Supervisor::new();
        let on_pods = async {
            let registered = async { drop(progress.wait_for(|progress| progress.registered).await) };
            tokio::select! {
                () = registered => {
                    let drained = async {
                        supervisor.stopping().await;
                        tokio::time::sleep(limit).await;
                    };
                    tokio::select! {
                        () = pods.run(supervisor.clone()) => {}
                        () = drained => warn!("calls on pods did not end in time: dropped"),
                    }
                }
                () = supervisor.stopping() => {}
            }
            node_supervisor.stop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = node.run(node_supervisor.clone()) => ended,
            () = on_pods => Ok(()),
        }
    }
}
