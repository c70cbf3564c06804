//! A lower cluster that is given up: somebody writes `multicluster.virtual-kubelet.io/abandon: "true"` on the virtual Node.
//!
//! Its pods are then let go without asking a cluster that may never answer again, and what may still run there is told by a last event.

use futures::StreamExt as _;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use tokio::sync::watch;
use tracing::warn;
use vk_kube::{Client, Objects, Selector, Slim, WatchEvent};
use vk_supervisor::{Supervisor, task};

use crate::names::{ABANDON, Owner, annotation};

/// The reason of the last event on a virtual Node.
pub const ABANDONED: &str = "LowerClusterAbandoned";

/// As much as an event can say, with some room.
const LONGEST: usize = 1000;

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
            () = look(&upper, &node, &sender) => {
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
async fn look(upper: &Client, node: &str, abandoned: &watch::Sender<bool>) {
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

/// The text of the last event on a virtual Node, from the lower pods (namespace and name) that are left behind.
pub fn farewell(owner: &Owner, left: &[(String, String)]) -> String {
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
        if text.len() + pod.len() + reserve + find.len() > LONGEST {
            text.push_str(&more);
            break;
        }
        text.push_str(&pod);
    }
    text + &find
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
        let text = farewell(&owner(), &left);
        assert!(text.contains("2 pods of this node may still run there: web/a, db/b; "), "{text}");
        assert!(text.ends_with(&owner().selector()), "{text}");
        assert!(farewell(&owner(), &left[..1]).contains("1 pod of this node may still run there: web/a; "));
    }

    #[test]
    fn however_many_there_are_an_event_holds_them_and_says_how_many_it_does_not_name() {
        for (count, letters) in [(1000, 5), (1000, 63), (5, 253), (1, 253), (20_000, 20)] {
            let text = farewell(&owner(), &pods(count, letters));
            assert!(text.len() <= LONGEST, "{}", text.len());
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
        assert!(farewell(&owner(), &[]).contains("no pod"));
    }
}
