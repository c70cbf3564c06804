//! A node whose lower cluster is given up: its pods are let go, nobody below is asked, and the node goes.

use std::{sync::Arc, time::Duration};

use futures::{Stream, stream};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use tracing::{info, warn};
use vk_kube::{Kind as ErrorKind, Objects};
use vk_provider::{Error, EventKind, NodeChange, PodBundle, PodRef, Result};
use vk_supervisor::{Supervisor, task};

use super::VirtualNode;
use crate::{
    abandon::{self, ABANDONED},
    names::ABANDON,
    status::lost,
};

/// How long the upper pods may take to leave before the node goes without them: the cluster removes pods of nodes that are gone.
const LEAVE: Duration = Duration::from_secs(30);
/// How often it is looked whether they are gone.
const PACE: Duration = Duration::from_millis(200);
/// How often, and how many times, the Node is looked for after it was deleted: whoever runs it may have made it anew while he stopped.
const LOOKS: (u32, Duration) = (5, Duration::from_secs(1));

impl VirtualNode {
    pub(super) fn is_abandoned(&self) -> bool {
        *self.abandoned.borrow()
    }

    /// Takes a pod, to say that it has failed.
    pub(super) fn create_nowhere(&self, bundle: &PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        self.memory.lock().given(&pod, &bundle.pod);
        self.look(&pod);
        Ok(())
    }

    pub(super) fn forsake(&self, pod: &PodRef) -> Error {
        self.memory.lock().forget(pod);
        Error::not_found(format!("the lower cluster of pod {pod} is given up"))
    }

    pub(super) fn status_nowhere(&self, pod: &PodRef) -> Result<PodStatus> {
        let known = self.memory.lock().of(pod);
        let Some(upper) = known.upper.filter(|_| !known.stops) else { return Err(self.forsake(pod)) };
        let message = format!("the lower cluster was given up: the node has the annotation {ABANDON}");
        let last = self.twin(pod).map(|lower| self.report(pod, &lower));
        Ok(lost(&upper, last.as_ref(), ABANDONED, &message))
    }

    /// Deletes the Node, when nobody runs it any more.
    pub(super) async fn remove_node(&self) {
        let nodes: Objects<Node> = Objects::all(self.upper.client.clone());
        let name = &self.owner.node;
        for _ in 0..LOOKS.0 {
            tokio::time::sleep(LOOKS.1).await;
            let deleted = match nodes.get(name).await {
                Ok(node) => nodes.delete(name, node.metadata.uid.as_deref().unwrap_or_default()).await,
                Err(error) => Err(error),
            };
            match deleted {
                Ok(()) => info!(node = name, "the Node of the lower cluster that was given up is deleted"),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => {
                    warn!(node = name, %error, "cannot delete the Node of the lower cluster that was given up: delete it, or see deploy/rbac-delete-nodes.yaml");
                }
            }
        }
    }
}

/// Lets the pods go as soon as the lower cluster is given up, and then the node.
pub(super) fn stand_by(node: &Arc<VirtualNode>, supervisor: &Supervisor) {
    let (node, guard) = (Arc::clone(node), supervisor.clone());
    supervisor.spawn("abandon", task::Kind::Work, async move {
        let mut abandoned = node.abandoned.clone();
        let work = async {
            if abandoned.wait_for(|abandoned| *abandoned).await.is_ok() {
                node.let_all_go().await;
                node.removed.send_replace(true);
            }
        };
        tokio::select! {
            () = work => {}
            () = guard.stopping() => {}
        }
    });
}

impl VirtualNode {
    async fn let_all_go(&self) {
        let deadline = tokio::time::Instant::now() + LEAVE;
        loop {
            let pods = self.memory.lock().all();
            if pods.is_empty() || tokio::time::Instant::now() > deadline {
                return;
            }
            for pod in &pods {
                let above: Objects<Pod> =
                    Objects::namespaced(self.upper.client.clone(), pod.namespace.to_string());
                match above.delete(&pod.name, &pod.uid).await {
                    Ok(()) => {}
                    Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Conflict) => {
                        self.memory.lock().forget(pod);
                    }
                    Err(error) => {
                        warn!(%pod, %error, "cannot delete a pod of the lower cluster that was given up");
                    }
                }
                self.look(pod);
            }
            tokio::time::sleep(PACE).await;
        }
    }
}

/// What is told of the node when its lower cluster is given up, once.
pub(super) fn farewell(node: &Arc<VirtualNode>) -> impl Stream<Item = NodeChange> + Send + use<> {
    let node = Arc::downgrade(node);
    stream::unfold(node, |weak| async move {
        let mut abandoned = weak.upgrade()?.abandoned.clone();
        abandoned.wait_for(|abandoned| *abandoned).await.ok()?;
        let node = weak.upgrade()?;
        let left: Vec<(String, String)> = node.own().iter().filter_map(|(pod, _)| node.key(pod)).collect();
        node.standing.changed();
        let told = NodeChange::Event {
            kind: EventKind::Warning,
            reason: ABANDONED.to_owned(),
            message: abandon::farewell(&node.owner, &left),
        };
        // There is nothing to tell after it.
        Some((told, std::sync::Weak::new()))
    })
}
