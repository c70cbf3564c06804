//! The leadership session of a virtual node: everything that runs while this process runs the node. It starts when the core subscribes to
//! changes and ends when it drops the stream. A standby process writes nothing to the lower cluster, and a process that was paused or cut
//! off writes nothing to either cluster later than the node's lease allows: everything goes through clients with the fence of the session.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream, stream::BoxStream};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use vk_kube::Client;
use vk_provider::{PodChange, PodEvent};
use vk_supervisor::{Supervisor, task};

use super::{VirtualNode, abandonment};
use crate::{
    copies::{self, Copier},
    events, storage,
};

/// Capacity of the event channel.
const EVENT_CAPACITY: usize = 256;
/// How often pods are checked that should have terminated.
const STUCK_POD_INTERVAL: Duration = Duration::from_secs(15);
/// How long the tasks of a session may take to end before they are aborted.
const SESSION_END: Duration = Duration::from_secs(10);

pub(super) struct LeadershipSession {
    pub(super) copier: Copier,
    /// A client of the lower cluster that writes only while the node's lease is held.
    pub(super) lower: Client,
    supervisor: Supervisor,
}

/// Ends a session when the core drops its stream of changes.
struct SessionGuard {
    node: Arc<VirtualNode>,
    session: Arc<LeadershipSession>,
}

/// The supervisor of the next session. Its tasks start only when all tasks of the last session have ended.
fn next_supervisor(node: &VirtualNode) -> Supervisor {
    let mut last = node.last_session.lock();
    let next = match &*last {
        Some(last) => node.supervisor.child_after(last, SESSION_END),
        None => node.supervisor.child(),
    };
    *last = Some(next.clone());
    next
}

/// Starts a session, which replaces an earlier one.
pub(super) fn begin(node: &Arc<VirtualNode>) -> BoxStream<'static, PodChange> {
    let supervisor = next_supervisor(node);
    let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
    let settings = &node.settings;
    let fence = node.upper.fence(&node.owner.node);
    let fenced = |client: &Client| match &fence {
        Some(fence) => client.fenced(fence.clone()),
        None => client.clone(),
    };
    let (upper, lower) = (fenced(&node.upper.client), fenced(node.lower.client()));
    let copier = Copier::new(copies::CopierOptions {
        upper: node.upper.reader(&node.owner.node),
        claims: Some(upper.clone()),
        upper_watches: Some(Arc::clone(&node.upper_watches)),
        lower: lower.clone(),
        lower_cluster: node.lower.clone(),
        owner: node.owner.clone(),
        namespaces: settings.namespaces.clone(),
        storage_classes: settings.storage_classes.clone(),
        metadata: settings.copied_metadata.clone(),
        supervisor: supervisor.clone(),
        events: events.clone(),
        grace: copies::GRACE,
        namespace_retention: settings.namespace_retention,
        clock: node.clock.clone(),
    });
    events::start(events::EventOptions {
        lower: node.lower.clone(),
        owner: node.owner.clone(),
        pods: Arc::<VirtualNode>::clone(node),
        supervisor: supervisor.clone(),
        events,
    });
    // The core passes all pods and asks for all statuses again.
    node.records.lock().clear();
    node.outbox.clear();
    spawn_event_forwarding(node, receiver, &supervisor);
    // A node may delete its own pods.
    abandonment::spawn_abandonment(node, fenced(&node.upper.reader(&node.owner.node)), &supervisor);
    spawn_stuck_pod_check(node, &supervisor);
    if node.settings.storage {
        spawn_claims(node, (upper, lower.clone()), &supervisor);
    }
    let session = Arc::new(LeadershipSession { copier, lower, supervisor });
    if let Some(earlier) = node.session.lock().replace(Arc::clone(&session)) {
        earlier.supervisor.stop();
    }
    let guard = SessionGuard { node: Arc::clone(node), session };
    let changes = node.outbox.changes();
    let guarded = stream::unfold((changes, guard), |(mut changes, guard)| async move {
        let change = changes.next().await?;
        Some((change, (changes, guard)))
    });
    guarded.boxed()
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.session.supervisor.stop();
        let mut session = self.node.session.lock();
        if session.as_ref().is_some_and(|session| Arc::ptr_eq(session, &self.session)) {
            *session = None;
        }
    }
}

/// Forwards events about copies and lower pods to the core.
fn spawn_event_forwarding(
    node: &Arc<VirtualNode>,
    mut receiver: mpsc::Receiver<PodEvent>,
    supervisor: &Supervisor,
) {
    let (outbox, guard) = (Arc::clone(&node.outbox), supervisor.clone());
    supervisor.spawn("events of copies", task::Kind::Work, async move {
        let pass = async {
            while let Some(event) = receiver.recv().await {
                outbox.event(event);
            }
        };
        tokio::select! {
            () = pass => {}
            () = guard.stopping() => {}
        }
    });
}

/// Serves claims as soon as the identity of the lower cluster is known, which their volumes need.
fn spawn_claims(node: &Arc<VirtualNode>, (upper, lower): (Client, Client), supervisor: &Supervisor) {
    let (weak, owned, guard) = (Arc::downgrade(node), supervisor.clone(), supervisor.clone());
    let mut changed = node.node_status.subscribe();
    supervisor.spawn("claims of the node", task::Kind::Work, async move {
        let known = async {
            loop {
                let node = weak.upgrade()?;
                let cluster = node.lower.identity().info().cluster;
                if !cluster.is_empty() {
                    break Some((node, cluster));
                }
                drop(node);
                changed.changed().await.ok()?;
            }
        };
        let found = tokio::select! {
            found = known => found,
            () = guard.stopping() => None,
        };
        let Some((node, cluster)) = found else { return };
        storage::start(storage::StorageOptions {
            upper,
            lower,
            owner: node.owner.clone(),
            namespaces: node.settings.namespaces.clone(),
            cluster,
            supervisor: owned,
        });
    });
}

/// Refreshes the status of pods that become stuck as time passes.
fn spawn_stuck_pod_check(node: &Arc<VirtualNode>, supervisor: &Supervisor) {
    let (node, guard) = (Arc::downgrade(node), supervisor.clone());
    supervisor.spawn("lost pods", task::Kind::Work, async move {
        let mut turns = tokio::time::interval(STUCK_POD_INTERVAL);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = turns.tick() => {}
                () = guard.stopping() => return,
            }
            let Some(node) = node.upgrade() else { return };
            if node.is_abandoned() {
                continue;
            }
            for (pod, lower) in node.own_pods() {
                if node.is_stuck(&lower) {
                    node.request_status(&pod);
                }
            }
        }
    });
}
