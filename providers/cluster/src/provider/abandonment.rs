//! Abandoned lower clusters: somebody set the annotation `multicluster.virtual-kubelet.io/abandon: "true"` on the virtual Node.
//!
//! The upper pods are then deleted without asking a cluster that may never answer again, and the Node is removed. A last event on the Node
//! lists the pods that may still be running in the lower cluster.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::{
    api::core::v1::{Node, Pod, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use tokio::sync::watch;
use tracing::{info, warn};
use vk_kube::{Client, Kind as ErrorKind, Objects, Selector, Slim, WatchEvent};
use vk_provider::{Error, EventKind, NodeChange, PodBundle, PodRef, Result};
use vk_supervisor::{Supervisor, task};

use super::VirtualNode;
use crate::{
    names::{ABANDON, OwnerId, annotation},
    status::failed_status,
};

/// The reason of the last event on a virtual Node.
pub const ABANDONED: &str = "LowerClusterAbandoned";

/// The API server accepts messages of 1024 bytes.
const MAX_MESSAGE_LENGTH: usize = 1000;

/// How long the upper pods may take to disappear before the Node is removed anyway. The cluster deletes pods of nodes that do not exist.
const UPPER_POD_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the upper pods are checked.
const POLL: Duration = Duration::from_millis(200);
/// How many times, and how often, the Node is deleted: the core may recreate it while it is shutting down.
const NODE_DELETIONS: (u32, Duration) = (5, Duration::from_secs(1));

/// Whether a virtual Node has the annotation.
pub fn is_abandoned(node: &ObjectMeta) -> bool {
    annotation(node, ABANDON) == Some("true")
}

/// Watches whether the lower cluster of a node is abandoned. This cannot be undone: once seen, removing the annotation or recreating the
/// Node has no effect. The value does not change any more when the supervisor stops.
pub fn watch(upper: Client, node: String, supervisor: &Supervisor) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    let stopping = supervisor.clone();
    supervisor.spawn(format!("abandon {node}"), task::Kind::Work, async move {
        tokio::select! {
            () = wait_for_annotation(&upper, &node, &sender) => {
                warn!(node, "the lower cluster is abandoned: the Node has the annotation {ABANDON}");
                // Keeps the sender for receivers that are cloned later.
                stopping.stopping().await;
            }
            () = stopping.stopping() => {}
        }
    });
    receiver
}

/// Returns when the annotation was seen on the node.
async fn wait_for_annotation(upper: &Client, node: &str, abandoned: &watch::Sender<bool>) {
    let nodes: Objects<Slim<Node>> = Objects::all(upper.clone());
    let selector = Selector { fields: Some(format!("metadata.name={node}")), labels: None };
    let mut changes = std::pin::pin!(nodes.watch(&selector));
    while let Some(change) = changes.next().await {
        if let WatchEvent::Applied(Slim(node)) = change
            && is_abandoned(&node.metadata)
        {
            abandoned.send_replace(true);
            return;
        }
    }
}

/// The message of the last event on a virtual Node. `left` are the namespaces and names of the lower pods that are left behind.
pub fn final_message(owner: &OwnerId, left: &[(String, String)]) -> String {
    if left.is_empty() {
        return "the lower cluster was abandoned; no pod of this node was known to run there".to_owned();
    }
    let pods = if left.len() == 1 { "1 pod".to_owned() } else { format!("{} pods", left.len()) };
    let find = format!("; to find them there: kubectl get pods -A -l {}", owner.selector());
    let mut text = format!("the lower cluster was abandoned; {pods} of this node may still run there: ");
    for (number, (namespace, name)) in left.iter().enumerate() {
        let pod = format!("{}{namespace}/{name}", if number == 0 { "" } else { ", " });
        let more = format!("{}and {} more", if number == 0 { "" } else { " " }, left.len() - number);
        // Leave room for the text that follows this pod.
        let reserve = if number + 1 == left.len() { 0 } else { more.len() + 1 };
        if text.len() + pod.len() + reserve + find.len() > MAX_MESSAGE_LENGTH {
            text.push_str(&more);
            break;
        }
        text.push_str(&pod);
    }
    text + &find
}

impl VirtualNode {
    pub(super) fn is_abandoned(&self) -> bool {
        *self.abandoned.borrow()
    }

    /// Accepts a pod, so that it can be reported as failed.
    pub(super) fn create_abandoned(&self, bundle: &PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        self.records.lock().set_upper(&pod, &bundle.pod);
        self.request_status(&pod);
        Ok(())
    }

    pub(super) fn forget_abandoned(&self, pod: &PodRef) -> Error {
        self.records.lock().forget(pod);
        Error::not_found(format!("the lower cluster of pod {pod} was abandoned"))
    }

    pub(super) fn abandoned_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let known = self.records.lock().get(pod);
        let Some(upper) = known.upper.filter(|_| !known.stopping) else {
            return Err(self.forget_abandoned(pod));
        };
        let message = format!("the lower cluster was abandoned: the node has the annotation {ABANDON}");
        let last = self.lower_pod(pod).map(|lower| self.report(pod, &lower));
        Ok(failed_status(&upper, last.as_ref(), ABANDONED, &message))
    }

    /// Deletes the Node object after the core stopped running it. No fence guards this, because nobody renews the lease any more. The
    /// annotation holds for every process that runs the node, so it does not matter which of them deletes it.
    pub(super) async fn remove_node(&self) {
        let nodes: Objects<Node> = Objects::all(self.upper.client.clone());
        let name = &self.owner.node;
        for _ in 0..NODE_DELETIONS.0 {
            tokio::time::sleep(NODE_DELETIONS.1).await;
            let deleted = match nodes.get(name).await {
                Ok(node) => nodes.delete(name, node.metadata.uid.as_deref().unwrap_or_default()).await,
                Err(error) => Err(error),
            };
            match deleted {
                Ok(()) => info!(node = name, "deleted the Node of the abandoned lower cluster"),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => {
                    warn!(node = name, %error, "cannot delete the Node of the abandoned lower cluster: delete it by hand, or see deploy/rbac-delete-nodes.yaml");
                }
            }
        }
    }
}

/// Spawns the task that deletes the upper pods when the lower cluster is abandoned.
pub(super) fn spawn_abandonment(node: &Arc<VirtualNode>, upper: Client, supervisor: &Supervisor) {
    let (node, guard) = (Arc::clone(node), supervisor.clone());
    supervisor.spawn("abandon", task::Kind::Work, async move {
        let mut abandoned = node.abandoned.clone();
        let work = async {
            if abandoned.wait_for(|abandoned| *abandoned).await.is_ok() {
                node.delete_upper_pods(&upper).await;
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
    async fn delete_upper_pods(&self, upper: &Client) {
        let deadline = tokio::time::Instant::now() + UPPER_POD_TIMEOUT;
        loop {
            let pods = self.records.lock().pods();
            if pods.is_empty() || tokio::time::Instant::now() > deadline {
                return;
            }
            for pod in &pods {
                let above: Objects<Pod> = Objects::namespaced(upper.clone(), pod.namespace.to_string());
                match above.delete(&pod.name, &pod.uid).await {
                    Ok(()) => {}
                    Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Conflict) => {
                        self.records.lock().forget(pod);
                    }
                    Err(error) => {
                        warn!(%pod, %error, "cannot delete a pod of the abandoned lower cluster");
                    }
                }
                self.request_status(pod);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The last event of the node, sent once when the lower cluster is abandoned.
pub(super) fn final_event(node: &Arc<VirtualNode>) -> impl Stream<Item = NodeChange> + Send + use<> {
    let node = Arc::downgrade(node);
    stream::unfold(node, |weak| async move {
        let mut abandoned = weak.upgrade()?.abandoned.clone();
        abandoned.wait_for(|abandoned| *abandoned).await.ok()?;
        let node = weak.upgrade()?;
        let left: Vec<(String, String)> =
            node.own_pods().iter().filter_map(|(pod, _)| node.key(pod)).collect();
        node.node_status.mark_changed();
        let event = NodeChange::Event {
            kind: EventKind::Warning,
            reason: ABANDONED.to_owned(),
            message: final_message(&node.owner, &left),
        };
        // The stream ends after this event.
        Some((event, std::sync::Weak::new()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerId {
        OwnerId { origin: "7e0c1a52-8f6e-4a5c-9a6e-2d3f1b0c9d8e".to_owned(), node: "vk".to_owned() }
    }

    fn pods(count: usize, letters: usize) -> Vec<(String, String)> {
        (0..count).map(|number| ("web".to_owned(), format!("{number:0>letters$}"))).collect()
    }

    #[test]
    fn only_the_value_true_abandons_a_cluster() {
        let node = |value: &str| ObjectMeta {
            annotations: Some([(ABANDON.to_owned(), value.to_owned())].into()),
            ..ObjectMeta::default()
        };
        assert!(is_abandoned(&node("true")));
        for value in ["", "false", "True", "yes"] {
            assert!(!is_abandoned(&node(value)), "{value}");
        }
        assert!(!is_abandoned(&ObjectMeta::default()));
    }

    #[test]
    fn the_message_lists_the_remaining_pods_and_how_to_find_them() {
        let left =
            [("web", "a"), ("db", "b")].map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let text = final_message(&owner(), &left);
        assert!(text.contains("2 pods of this node may still run there: web/a, db/b; "), "{text}");
        assert!(text.ends_with(&owner().selector()), "{text}");
        assert!(
            final_message(&owner(), &left[..1]).contains("1 pod of this node may still run there: web/a; ")
        );
    }

    #[test]
    fn a_long_list_of_pods_is_truncated_with_a_count() {
        for (count, letters) in [(1000, 5), (1000, 63), (5, 253), (1, 253), (20_000, 20)] {
            let text = final_message(&owner(), &pods(count, letters));
            assert!(text.len() <= MAX_MESSAGE_LENGTH, "{}", text.len());
            assert!(text.ends_with(&owner().selector()), "{text}");
            let named = text.matches("web/").count();
            let more = text.split_once("and ").map_or(0, |(_, rest)| {
                rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
            });
            assert_eq!(named + more, count, "{text}");
        }
    }

    #[test]
    fn the_message_without_pods_lists_none() {
        assert!(final_message(&owner(), &[]).contains("no pod"));
    }
}
