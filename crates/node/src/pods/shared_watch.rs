//! One watch on all bound pods for many nodes.
//!
//! Pods are sorted by `spec.nodeName`, and each node reads its own as if it had a watch of its own. Pods of other nodes are
//! dropped at once. This needs the right to list and watch pods in all namespaces.

mod mailbox;
mod router;

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

use self::{mailbox::Mailbox, router::WatchRouter};
use super::{
    watch::{PodWatch, PodWatchEvent, of_node, pod_changes, trim},
    watch_audit::{AuditScope, PERIOD, pod_versions},
};

/// All pods that are bound to a node.
const BOUND: &str = "spec.nodeName!=";
/// How many lists for late nodes, and reads of pods that the watch missed, are in flight at a time.
const AT_ONCE: usize = 8;
/// How often the API server must refuse before it is believed: just after its start it may not know its own rules yet.
const REFUSALS: u32 = 4;

/// The watch. Clones share it.
#[derive(Clone)]
pub struct SharedPodWatch {
    client: Client,
    router: Arc<Mutex<WatchRouter>>,
    /// A node joined late.
    late: Arc<Notify>,
}

/// A node's membership, until it is dropped.
struct Membership {
    shared: SharedPodWatch,
    node: String,
    id: u64,
    mailbox: Arc<Mailbox>,
}

/// The source of a node's events.
enum EventSource {
    Shared(Membership),
    Own(PodWatch),
}

/// The answer to a request beside the watch.
enum Reply {
    /// The pods of a late node; `None` if it has left.
    Listed(String, u64, Option<ObjectList<Pod>>),
    /// A pod that the watch never showed.
    Read(PodRef, Option<Box<Pod>>),
}

// === impl SharedPodWatch ===

impl SharedPodWatch {
    /// A watch that has not begun. Nodes that join before it does need no list of their own.
    pub fn new(client: Client) -> Self {
        Self { client, router: Arc::default(), late: Arc::default() }
    }

    /// Starts the watch, as a task of the supervisor.
    pub fn start(&self, supervisor: &Supervisor) {
        let selector = Selector { fields: Some(BOUND.to_owned()), labels: None };
        let events = pod_changes(self.client.clone(), &selector);
        let router = Arc::clone(&self.router);
        let scope = AuditScope::AllNodes(Arc::new(move |uid| router.lock().is_audited(uid)));
        let versions = pod_versions(self.client.clone(), scope, PERIOD);
        let (shared, guard) = (self.clone(), supervisor.clone());
        supervisor.spawn("pods watch", task::Kind::Critical, async move {
            tokio::select! {
                () = shared.run(events.boxed(), versions) => guard.stopping().await,
                () = guard.stopping() => {}
            }
        });
    }

    /// The pods of one node. If the shared watch turns out not to be permitted, they come from a watch of the node's own.
    pub fn for_node(&self, node: &str) -> PodWatch {
        let mut router = self.router.lock();
        if router.refused {
            return of_node(self.client.clone(), node);
        }
        let (id, mailbox) = router.join(node);
        drop(router);
        self.late.notify_one();
        let membership = Membership { shared: self.clone(), node: node.to_owned(), id, mailbox };
        stream::unfold(EventSource::Shared(membership), |mut source| async move {
            let event = source.next().await?;
            Some((event, source))
        })
        .boxed()
    }

    /// Routes the events of the watch, until it turns out not to be permitted.
    async fn run(
        &self,
        mut events: BoxStream<'static, WatchEvent<Pod>>,
        mut versions: BoxStream<'static, PodWatchEvent>,
    ) {
        let mut replies: FuturesUnordered<BoxFuture<'static, Reply>> = FuturesUnordered::new();
        let mut missed: Vec<PodRef> = Vec::new();
        let (mut refusals, mut listed) = (0, false);
        loop {
            while replies.len() < AT_ONCE {
                if let Some((node, id)) = self.router.lock().next_late() {
                    replies.push(self.clone().list(node, id).boxed());
                } else if let Some(pod) = missed.pop() {
                    replies.push(read(self.client.clone(), pod).boxed());
                } else {
                    break;
                }
            }
            tokio::select! {
                Some(event) = events.next() => {
                    match &event {
                        WatchEvent::Error(error) if error.kind == Kind::Forbidden && !listed => refusals += 1,
                        WatchEvent::Listed => listed = true,
                        _ => {}
                    }
                    if let WatchEvent::Error(error) = &event && refusals >= REFUSALS {
                        warn!(%error, "one watch for all nodes needs the right to list and watch pods in all namespaces: \
                                       each node opens its own");
                        return self.router.lock().set_refused();
                    }
                    self.router.lock().watch_event(event);
                }
                Some(event) = versions.next() => match event {
                    // It includes those of the last time that were not read yet.
                    PodWatchEvent::Versions(list) => missed = self.router.lock().versions_listed(&list),
                    PodWatchEvent::AuditFailed(failure) => self.router.lock().audit_failed(&failure),
                    _ => {}
                },
                Some(reply) = replies.next(), if !replies.is_empty() => self.handle_reply(reply),
                () = self.late.notified() => {}
            }
        }
    }

    fn handle_reply(&self, reply: Reply) {
        match reply {
            Reply::Listed(node, id, Some(listing)) => {
                self.router.lock().listed_separately(&node, id, listing);
            }
            Reply::Listed(_, _, None) => {}
            Reply::Read(pod, found) => {
                if self.router.lock().found(&pod, found.map(|found| *found)) {
                    warn!(%pod, "the watch missed the pod: found by the audit");
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
        while self.router.lock().is_late(&node, id) {
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

/// Reads a pod from the API server itself. One that cannot be read is in the next list of versions again.
async fn read(client: Client, pod: PodRef) -> Reply {
    let found = Objects::<Pod>::namespaced(client, pod.namespace.as_ref()).get(&pod.name).await;
    let trimmed = found.ok().map(|mut found| {
        trim(&mut found);
        Box::new(found)
    });
    Reply::Read(pod, trimmed)
}

// === impl EventSource ===

impl EventSource {
    async fn next(&mut self) -> Option<PodWatchEvent> {
        loop {
            match self {
                Self::Own(watch) => return watch.next().await,
                Self::Shared(membership) => {
                    if let Some(event) = membership.mailbox.pop() {
                        return Some(event);
                    }
                    if membership.shared.router.lock().refused {
                        *self = Self::Own(of_node(membership.shared.client.clone(), &membership.node));
                    } else {
                        membership.mailbox.changed.notified().await;
                    }
                }
            }
        }
    }
}

// === impl Membership ===

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.router.lock().leave(&self.node, self.id);
    }
}

#[cfg(test)]
mod tests;
