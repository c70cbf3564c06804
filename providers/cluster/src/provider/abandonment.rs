//! A node whose lower cluster is given up: its pods are let go, nobody below is asked, and the node goes.

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
    names::{ABANDON, Owner, annotation},
    status::failed_status,
};

/// The reason of the last event on a virtual Node.
pub const ABANDONED: &str = "LowerClusterAbandoned";

/// As much as an event can say, with some room.
const MAX_MESSAGE_LENGTH: usize = 1000;

/// How long the upper pods may take to leave before the node goes without them: the cluster removes pods of nodes that are gone.
const LEAVE: Duration = Duration::from_secs(30);
/// How often it is looked whether they are gone.
const PACE: Duration = Duration::from_millis(200);
/// How often, and how many times, the Node is looked for after it was deleted: whoever runs it may have made it anew while he stopped.
const LOOKS: (u32, Duration) = (5, Duration::from_secs(1));

/// Whether the lower cluster of a virtual Node is given up.
pub fn is_abandoned(node: &ObjectMeta) -> bool {
    annotation(node, ABANDON) == Some("true")
}

/// Tells whether the lower cluster of a node is given up. Once it is there is no way back: the pods are gone, also if the annotation goes or
/// the Node is made anew. Nothing more is told when the supervisor stops.
pub fn watch(upper: Client, node: String, supervisor: &Supervisor) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    let stopping = supervisor.clone();
    supervisor.spawn(format!("abandon {node}"), task::Kind::Work, async move {
        tokio::select! {
            () = wait_for_annotation(&upper, &node, &sender) => {
                warn!(node, "the lower cluster is given up: {ABANDON} is on the Node");
                // Whoever asks later is told, too.
                stopping.stopping().await;
            }
            () = stopping.stopping() => {}
        }
    });
    receiver
}

/// Ends when the node is seen to be abandoned.
async fn wait_for_annotation(upper: &Client, node: &str, abandoned: &watch::Sender<bool>) {
    let nodes: Objects<Slim<Node>> = Objects::cluster(upper.clone());
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

/// The text of the last event on a virtual Node, from the lower pods (namespace and name) that are left behind.
pub fn final_message(owner: &Owner, left: &[(String, String)]) -> String {
    if left.is_empty() {
        return "the lower cluster is given up; no pod of this node was known to be there".to_owned();
    }
    let pods = if left.len() == 1 { "1 pod".to_owned() } else { format!("{} pods", left.len()) };
    let find = format!("; to find them there: kubectl get pods -A -l {}", owner.selector());
    let mut text = format!("the lower cluster is given up; {pods} of this node may still run there: ");
    for (number, (namespace, name)) in left.iter().enumerate() {
        let pod = format!("{}{namespace}/{name}", if number == 0 { "" } else { ", " });
        let more = format!("{}and {} more", if number == 0 { "" } else { " " }, left.len() - number);
        // What comes after this one has to have its place.
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

    /// Takes a pod, to say that it has failed.
    pub(super) fn create_abandoned(&self, bundle: &PodBundle) -> Result<()> {
        let pod = bundle.reference().ok_or_else(|| Error::invalid("the pod has no uid"))?;
        self.records.lock().set_upper(&pod, &bundle.pod);
        self.request_status(&pod);
        Ok(())
    }

    pub(super) fn forget_abandoned(&self, pod: &PodRef) -> Error {
        self.records.lock().forget(pod);
        Error::not_found(format!("the lower cluster of pod {pod} is given up"))
    }

    pub(super) fn abandoned_status(&self, pod: &PodRef) -> Result<PodStatus> {
        let known = self.records.lock().get(pod);
        let Some(upper) = known.upper.filter(|_| !known.stopping) else {
            return Err(self.forget_abandoned(pod));
        };
        let message = format!("the lower cluster was given up: the node has the annotation {ABANDON}");
        let last = self.lower_pod(pod).map(|lower| self.report(pod, &lower));
        Ok(failed_status(&upper, last.as_ref(), ABANDONED, &message))
    }

    /// Deletes the Node, when nobody runs it any more.
    pub(super) async fn remove_node(&self) {
        let nodes: Objects<Node> = Objects::cluster(self.upper.client.clone());
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
pub(super) fn spawn_abandonment(node: &Arc<VirtualNode>, supervisor: &Supervisor) {
    let (node, guard) = (Arc::clone(node), supervisor.clone());
    supervisor.spawn("abandon", task::Kind::Work, async move {
        let mut abandoned = node.abandoned.clone();
        let work = async {
            if abandoned.wait_for(|abandoned| *abandoned).await.is_ok() {
                node.delete_upper_pods().await;
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
    async fn delete_upper_pods(&self) {
        let deadline = tokio::time::Instant::now() + LEAVE;
        loop {
            let pods = self.records.lock().pods();
            if pods.is_empty() || tokio::time::Instant::now() > deadline {
                return;
            }
            for pod in &pods {
                let above: Objects<Pod> =
                    Objects::namespaced(self.upper.client.clone(), pod.namespace.to_string());
                match above.delete(&pod.name, &pod.uid).await {
                    Ok(()) => {}
                    Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Conflict) => {
                        self.records.lock().forget(pod);
                    }
                    Err(error) => {
                        warn!(%pod, %error, "cannot delete a pod of the lower cluster that was given up");
                    }
                }
                self.request_status(pod);
            }
            tokio::time::sleep(PACE).await;
        }
    }
}

/// What is told of the node when its lower cluster is given up, once.
pub(super) fn final_event(node: &Arc<VirtualNode>) -> impl Stream<Item = NodeChange> + Send + use<> {
    let node = Arc::downgrade(node);
    stream::unfold(node, |weak| async move {
        let mut abandoned = weak.upgrade()?.abandoned.clone();
        abandoned.wait_for(|abandoned| *abandoned).await.ok()?;
        let node = weak.upgrade()?;
        let left: Vec<(String, String)> =
            node.own_pods().iter().filter_map(|(pod, _)| node.key(pod)).collect();
        node.node_status.mark_changed();
        let told = NodeChange::Event {
            kind: EventKind::Warning,
            reason: ABANDONED.to_owned(),
            message: final_message(&node.owner, &left),
        };
        // There is nothing to tell after it.
        Some((told, std::sync::Weak::new()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { origin: "7e0c1a52-8f6e-4a5c-9a6e-2d3f1b0c9d8e".to_owned(), node: "vk".to_owned() }
    }

    fn pods(count: usize, letters: usize) -> Vec<(String, String)> {
        (0..count).map(|number| ("web".to_owned(), format!("{number:0>letters$}"))).collect()
    }

    #[test]
    fn only_the_word_true_gives_a_cluster_up() {
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
    fn what_is_left_behind_is_named_with_the_way_to_find_it() {
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
    fn however_many_there_are_an_event_holds_them_and_says_how_many_it_does_not_name() {
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
    fn where_nothing_is_left_nothing_is_named() {
        assert!(final_message(&owner(), &[]).contains("no pod"));
    }
}
