//! One watch of the pods on trial for all nodes of a process, most of which have none at any time.
//!
//! Pods are sorted by the label that names their node, and each node reads its own as if it had a watch of its own. This needs the right to
//! list and watch pods in all namespaces.

mod router;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use vk_kube::{Client, Selector};
use vk_provider::placement::TRIAL_LABEL;
use vk_supervisor::{Supervisor, task};

use self::router::{Mailbox, TrialRouter};
use super::watch::{PodWatch, pod_changes};

/// How often the pods are listed, because a pod whose event a watch has lost would be kept from all nodes.
const RELIST: Duration = Duration::from_mins(5);

/// The watch. Clones share it.
#[derive(Clone)]
pub struct SharedTrialWatch {
    client: Client,
    supervisor: Supervisor,
    router: Arc<Mutex<TrialRouter>>,
}

/// A node's membership, until it is dropped.
struct Membership {
    router: Arc<Mutex<TrialRouter>>,
    node: String,
    mailbox: Arc<Mailbox>,
}

// === impl SharedTrialWatch ===

impl SharedTrialWatch {
    /// A watch that begins, as a task of the supervisor, when the first node joins.
    pub fn new(client: Client, supervisor: &Supervisor) -> Self {
        Self { client, supervisor: supervisor.clone(), router: Arc::default() }
    }

    /// The pods on trial on one node.
    pub fn for_node(&self, node: &str) -> PodWatch {
        let (mailbox, is_first) = self.router.lock().join(node);
        if is_first {
            self.start();
        }
        let membership = Membership { router: Arc::clone(&self.router), node: node.to_owned(), mailbox };
        stream::unfold(membership, |membership| async move {
            loop {
                let event = membership.router.lock().next(&membership.node, &membership.mailbox);
                if let Some(event) = event {
                    return Some((event, membership));
                }
                membership.mailbox.changed.notified().await;
            }
        })
        .boxed()
    }

    fn start(&self) {
        let (client, router) = (self.client.clone(), Arc::clone(&self.router));
        let selector = Selector { fields: None, labels: Some(TRIAL_LABEL.to_owned()) };
        let watch = move || {
            let period = RELIST.mul_f64(rand::random_range(0.8..1.2));
            pod_changes(client.clone(), &selector).take_until(tokio::time::sleep(period))
        };
        let mut events = stream::repeat_with(watch).flatten().boxed();
        let supervisor = self.supervisor.clone();
        self.supervisor.spawn("trials watch", task::Kind::Critical, async move {
            loop {
                tokio::select! {
                    Some(event) = events.next() => router.lock().watch_event(event),
                    () = supervisor.stopping() => return,
                }
            }
        });
    }
}

// === impl Membership ===

impl Drop for Membership {
    fn drop(&mut self) {
        self.router.lock().leave(&self.node, &self.mailbox);
    }
}
