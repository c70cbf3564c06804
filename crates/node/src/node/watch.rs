//! Watches of Node objects: one per node, or one shared by all nodes of the process.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use futures::{StreamExt as _, future, stream::BoxStream};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use vk_kube::{Client, Objects, Selector, WatchEvent};
use vk_supervisor::{Supervisor, task};

use super::desired::is_our_apply;

/// An observed state of a Node.
#[derive(Clone, Debug)]
pub enum NodeObservation {
    /// The Node exists.
    Present(Arc<Node>),
    /// The Node does not exist.
    Absent,
}

/// Observations of one Node, newest last. Outdated ones may be skipped.
pub type NodeObservations = BoxStream<'static, NodeObservation>;

/// Watches a single Node, which is all that a node identity may watch.
pub fn watch_one(client: Client, name: &str) -> NodeObservations {
    let selector = Selector { fields: Some(format!("metadata.name={name}")), labels: None };
    let mut found_in_list = false;
    Objects::<Node>::all(client)
        .watch(&selector)
        .filter_map(move |event| {
            future::ready(match event {
                WatchEvent::Restarted => {
                    found_in_list = false;
                    None
                }
                WatchEvent::Applied(node) => {
                    found_in_list = true;
                    Some(NodeObservation::Present(slim(node)))
                }
                WatchEvent::Deleted(_) => Some(NodeObservation::Absent),
                WatchEvent::Listed => (!found_in_list).then_some(NodeObservation::Absent),
                WatchEvent::Error(_) => None,
            })
        })
        .boxed()
}

/// One watch for all nodes of the process. Needs permission to watch nodes.
#[derive(Clone, Debug, Default)]
pub struct SharedNodeWatch {
    nodes: Arc<Mutex<HashMap<String, watch::Sender<Option<NodeObservation>>>>>,
}

impl SharedNodeWatch {
    /// Watches the nodes with these labels. The supervisor owns the task.
    pub fn start(client: Client, labels: &str, supervisor: &Supervisor) -> Self {
        let shared = Self::default();
        let selector = Selector { fields: None, labels: Some(labels.to_owned()) };
        let (watch, stop) = (shared.clone(), supervisor.clone());
        supervisor.spawn("nodes watch", task::Kind::Critical, async move {
            let events = Objects::<Node>::all(client).watch(&selector);
            tokio::select! {
                () = watch.run(events.boxed()) => {}
                () = stop.stopping() => {}
            }
        });
        shared
    }

    async fn run(&self, mut events: BoxStream<'static, WatchEvent<Node>>) {
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                WatchEvent::Restarted => listed.clear(),
                WatchEvent::Applied(node) => {
                    let name = node.metadata.name.clone().unwrap_or_default();
                    listed.insert(name.clone());
                    self.publish(&name, NodeObservation::Present(slim(node)));
                }
                WatchEvent::Deleted(node) => {
                    self.publish(node.metadata.name.as_deref().unwrap_or_default(), NodeObservation::Absent);
                }
                WatchEvent::Listed => {
                    let names: Vec<String> = self.nodes.lock().keys().cloned().collect();
                    for name in names.iter().filter(|name| !listed.contains(*name)) {
                        self.publish(name, NodeObservation::Absent);
                    }
                    listed.clear();
                }
                WatchEvent::Error(_) => {}
            }
        }
    }

    fn publish(&self, name: &str, observation: NodeObservation) {
        if let Some(sender) = self.nodes.lock().get(name) {
            sender.send_replace(Some(observation));
        }
    }

    /// Observations of one node. A slow reader only gets the newest.
    pub fn subscribe(&self, name: &str) -> NodeObservations {
        let receiver = self.nodes.lock().entry(name.to_owned()).or_default().subscribe();
        WatchStream::new(receiver).filter_map(future::ready).boxed()
    }
}

/// Drops the parts of a Node that the controller does not use.
fn slim(mut node: Node) -> Arc<Node> {
    // Other managers' fields only matter for the migration from the Go original.
    let from_go = |all: &BTreeMap<String, String>| all.keys().any(|key| key.contains("/last-applied-"));
    if !node.metadata.annotations.as_ref().is_some_and(from_go)
        && let Some(entries) = &mut node.metadata.managed_fields
    {
        entries.retain(is_our_apply);
    }
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    Arc::new(node)
}
