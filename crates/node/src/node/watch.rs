//! How a controller learns that its Node changed: a watch of its own, or a share of one for many nodes.

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

/// What is known of a Node.
#[derive(Clone, Debug)]
pub enum Sight {
    /// It looks like this.
    Seen(Arc<Node>),
    /// It is not there.
    Missing,
}

/// Sights of one Node, newest last; may skip what is outdated.
pub type Sights = BoxStream<'static, Sight>;

/// A watch of one Node alone: all that a node identity may have.
pub fn one(client: Client, name: &str) -> Sights {
    let selector = Selector { fields: Some(format!("metadata.name={name}")), labels: None };
    let mut seen_in_listing = false;
    Objects::<Node>::all(client)
        .watch(&selector)
        .filter_map(move |change| {
            future::ready(match change {
                WatchEvent::Restarted => {
                    seen_in_listing = false;
                    None
                }
                WatchEvent::Applied(node) => {
                    seen_in_listing = true;
                    Some(Sight::Seen(slim(node)))
                }
                WatchEvent::Deleted(_) => Some(Sight::Missing),
                WatchEvent::Listed => (!seen_in_listing).then_some(Sight::Missing),
                WatchEvent::Error(_) => None,
            })
        })
        .boxed()
}

/// One watch for all nodes of the process, which needs the right to watch nodes.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    nodes: Arc<Mutex<HashMap<String, watch::Sender<Option<Sight>>>>>,
}

impl Shared {
    /// Watches the nodes that carry these labels. The task belongs to the supervisor.
    pub fn start(client: Client, labels: &str, supervisor: &Supervisor) -> Self {
        let shared = Self::default();
        let selector = Selector { fields: None, labels: Some(labels.to_owned()) };
        let (hub, guard) = (shared.clone(), supervisor.clone());
        supervisor.spawn("nodes watch", task::Kind::Critical, async move {
            let changes = Objects::<Node>::all(client).watch(&selector);
            tokio::select! {
                () = hub.run(changes.boxed()) => {}
                () = guard.stopping() => {}
            }
        });
        shared
    }

    async fn run(&self, mut changes: BoxStream<'static, WatchEvent<Node>>) {
        let mut listed = HashSet::new();
        while let Some(change) = changes.next().await {
            match change {
                WatchEvent::Restarted => listed.clear(),
                WatchEvent::Applied(node) => {
                    let name = node.metadata.name.clone().unwrap_or_default();
                    listed.insert(name.clone());
                    self.tell(&name, Sight::Seen(slim(node)));
                }
                WatchEvent::Deleted(node) => {
                    self.tell(node.metadata.name.as_deref().unwrap_or_default(), Sight::Missing);
                }
                WatchEvent::Listed => {
                    let names: Vec<String> = self.nodes.lock().keys().cloned().collect();
                    for name in names.iter().filter(|name| !listed.contains(*name)) {
                        self.tell(name, Sight::Missing);
                    }
                    listed.clear();
                }
                WatchEvent::Error(_) => {}
            }
        }
    }

    fn tell(&self, name: &str, sight: Sight) {
        if let Some(sender) = self.nodes.lock().get(name) {
            sender.send_replace(Some(sight));
        }
    }

    /// The sights of one of the nodes. Only the newest is kept for a slow reader.
    pub fn of(&self, name: &str) -> Sights {
        let receiver = self.nodes.lock().entry(name.to_owned()).or_default().subscribe();
        WatchStream::new(receiver).filter_map(future::ready).boxed()
    }
}

/// A Node without what the controller never looks at.
fn slim(mut node: Node) -> Arc<Node> {
    // The owners of all fields matter only when adopting.
    let foreign = |all: &BTreeMap<String, String>| all.keys().any(|key| key.contains("/last-applied-"));
    if !node.metadata.annotations.as_ref().is_some_and(foreign)
        && let Some(entries) = &mut node.metadata.managed_fields
    {
        entries.retain(is_our_apply);
    }
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    Arc::new(node)
}
