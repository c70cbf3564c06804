//! One watch on all bound pods for many nodes.
//!
//! Its pods are sorted by `spec.nodeName`, and each node reads its own as if it had a watch of its own. Pods of nodes that are
//! not here are dropped at once. It takes the right to list and watch pods in all namespaces.

mod hub;
mod line;

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _, future::BoxFuture, stream, stream::BoxStream, stream::FuturesUnordered,
};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::sync::Notify;
use tracing::{debug, warn};
use vk_kube::{Client, Kind, Objects, Selector, WatchEvent, metadata_list::ObjectList};
use vk_provider::PodRef;
use vk_supervisor::{Backoff, Supervisor, task};

use self::hub::{Hub, Mailbox};
use super::{
    surveying::{PERIOD, surveys},
    watch::{Sight, Sights, changes, of_node, trim},
};

/// All pods that are bound to a node.
const BOUND: &str = "spec.nodeName!=";
/// How many nodes that came late have their pods listed at a time, and how many pods that the watch missed are read.
const AT_ONCE: usize = 8;
/// So often the API server may say no before it is believed: just after its start it may not know its own rules yet.
const REFUSALS: u32 = 4;

/// The watch. Clones share it.
#[derive(Clone)]
pub struct Shared {
    client: Client,
    hub: Arc<Mutex<Hub>>,
    /// Somebody came late.
    late: Arc<Notify>,
}

/// A node's part of the watch, until it is dropped.
struct Share {
    shared: Shared,
    node: String,
    id: u64,
    mailbox: Arc<Mailbox>,
}

/// Where a node's sights come from.
enum Source {
    Shared(Share),
    Own(Sights),
}

/// What was asked beside the watch.
enum Reply {
    /// The pods of a node that came late; none if it has gone again.
    Listed(String, u64, Option<ObjectList<Pod>>),
    /// A pod that a survey has and the watch never showed.
    Read(PodRef, Option<Box<Pod>>),
}

// === impl Shared ===

impl Shared {
    /// A watch that is not begun yet. Nodes that join before it is need no listing of their own.
    pub fn new(client: Client) -> Self {
        Self { client, hub: Arc::default(), late: Arc::default() }
    }

    /// Begins. The task belongs to the supervisor.
    pub fn start(&self, supervisor: &Supervisor) {
        let selector = Selector { fields: Some(BOUND.to_owned()), labels: None };
        let changes = changes(self.client.clone(), &selector);
        let surveys = surveys(self.client.clone(), BOUND.to_owned(), true, PERIOD);
        let (shared, guard) = (self.clone(), supervisor.clone());
        supervisor.spawn("pods watch", task::Kind::Critical, async move {
            tokio::select! {
                () = shared.run(changes.boxed(), surveys) => guard.stopping().await,
                () = guard.stopping() => {}
            }
        });
    }

    /// The sights of one node. If the watch turns out not to be permitted they come from a watch of the node's own.
    pub fn of(&self, node: &str) -> Sights {
        let mut hub = self.hub.lock();
        if hub.refused {
            return of_node(self.client.clone(), node);
        }
        let (id, mailbox) = hub.join(node);
        drop(hub);
        self.late.notify_one();
        let share = Share { shared: self.clone(), node: node.to_owned(), id, mailbox };
        stream::unfold(Source::Shared(share), |mut source| async move {
            let sight = source.next().await?;
            Some((sight, source))
        })
        .boxed()
    }

    /// Hands out what the watch tells, until it turns out not to be permitted.
    async fn run(
        &self,
        mut changes: BoxStream<'static, WatchEvent<Pod>>,
        mut surveys: BoxStream<'static, Sight>,
    ) {
        let mut replies: FuturesUnordered<BoxFuture<'static, Reply>> = FuturesUnordered::new();
        let mut unheard: Vec<PodRef> = Vec::new();
        let (mut refusals, mut listed) = (0, false);
        loop {
            while replies.len() < AT_ONCE {
                if let Some((node, id)) = self.hub.lock().next_late() {
                    replies.push(self.clone().list(node, id).boxed());
                } else if let Some(pod) = unheard.pop() {
                    replies.push(read(self.client.clone(), pod).boxed());
                } else {
                    break;
                }
            }
            tokio::select! {
                Some(change) = changes.next() => {
                    match &change {
                        WatchEvent::Error(error) if error.kind == Kind::Forbidden && !listed => refusals += 1,
                        WatchEvent::Listed => listed = true,
                        _ => {}
                    }
                    if let WatchEvent::Error(error) = &change && refusals >= REFUSALS {
                        warn!(%error, "one watch for all nodes needs the right to list and watch pods in all namespaces: \
                                       each node gets a watch of its own");
                        return self.hub.lock().refuse();
                    }
                    self.hub.lock().change(change);
                }
                Some(Sight::Surveyed(survey)) = surveys.next() => {
                    let missed = self.hub.lock().surveyed(&survey);
                    // Those of the last time that nobody got to are among them.
                    unheard = missed;
                }
                Some(reply) = replies.next(), if !replies.is_empty() => self.replied(reply),
                () = self.late.notified() => {}
            }
        }
    }

    fn replied(&self, reply: Reply) {
        match reply {
            Reply::Listed(node, id, Some(listing)) => self.hub.lock().listed_apart(&node, id, listing),
            Reply::Listed(_, _, None) => {}
            Reply::Read(pod, found) => {
                if self.hub.lock().found(&pod, found.map(|found| *found)) {
                    warn!(%pod, "the watch did not tell of the pod: found out by comparison");
                }
            }
        }
    }

    /// Lists the pods of a node as they are now, however long it takes.
    async fn list(self, node: String, id: u64) -> Reply {
        let selector = Selector { fields: Some(format!("spec.nodeName={node}")), labels: None };
        let pods = Objects::<Pod>::all(self.client.clone());
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut rng = StdRng::from_rng(&mut rand::rng());
        while self.hub.lock().is_late(&node, id) {
            match pods.list(&selector).await {
                Ok(mut listing) => {
                    listing.objects.iter_mut().for_each(trim);
                    return Reply::Listed(node, id, Some(listing));
                }
                Err(error) => {
                    let wait = backoff.next(error.retry_after, &mut rng);
                    debug!(node, %error, ?wait, "cannot list the pods of a new node: trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        }
        Reply::Listed(node, id, None)
    }
}

/// Reads a pod from the API server itself. One that cannot be read shows in the next survey again.
async fn read(client: Client, pod: PodRef) -> Reply {
    let found = Objects::<Pod>::namespaced(client, pod.namespace.as_ref()).get(&pod.name).await;
    let trimmed = found.ok().map(|mut found| {
        trim(&mut found);
        Box::new(found)
    });
    Reply::Read(pod, trimmed)
}

// === impl Source ===

impl Source {
    async fn next(&mut self) -> Option<Sight> {
        loop {
            match self {
                Self::Own(sights) => return sights.next().await,
                Self::Shared(share) => {
                    if let Some(sight) = share.mailbox.pop() {
                        return Some(sight);
                    }
                    if share.shared.hub.lock().refused {
                        *self = Self::Own(of_node(share.shared.client.clone(), &share.node));
                    } else {
                        share.mailbox.bell.notified().await;
                    }
                }
            }
        }
    }
}

// === impl Share ===

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.hub.lock().leave(&self.node, self.id);
    }
}

#[cfg(test)]
mod tests;
