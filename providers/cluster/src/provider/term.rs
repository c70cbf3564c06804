//! What is done as long as the node is ours: from when changes are asked for until nobody wants them any more. A process that stands by
//! touches nothing below.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream, stream::BoxStream};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use vk_provider::{PodChange, PodEvent};
use vk_supervisor::{Supervisor, task};

use super::{VirtualNode, abandoning};
use crate::{
    events,
    reflect::{self, Reflector},
    storage,
};

/// How many events may wait.
const EVENTS: usize = 256;
/// How often pods are looked at that should have ended.
const PATROL: Duration = Duration::from_secs(15);

pub(super) struct Term {
    pub(super) reflector: Reflector,
    supervisor: Supervisor,
}

/// Ends a term when nobody wants its changes any more.
struct Guard {
    node: Arc<VirtualNode>,
    term: Arc<Term>,
}

/// How long the tasks of a session may take to end before they are aborted.
const SESSION_END: Duration = Duration::from_secs(10);

/// The supervisor of the next session. Its tasks start only when all tasks of the session before have ended.
fn next_supervisor(node: &VirtualNode) -> Supervisor {
    let mut last = node.last_session.lock();
    let next = match &*last {
        Some(last) => node.supervisor.child_after(last, SESSION_END),
        None => node.supervisor.child(),
    };
    *last = Some(next.clone());
    next
}

/// Begins, in place of an earlier term.
pub(super) fn begin(node: &Arc<VirtualNode>) -> BoxStream<'static, PodChange> {
    let supervisor = next_supervisor(node);
    let (events, told) = mpsc::channel(EVENTS);
    let settings = &node.settings;
    let reflector = Reflector::new(reflect::Setup {
        upper: node.upper.reader(&node.owner.node),
        claims: Some(node.upper.client.clone()),
        lower: node.lower.client().clone(),
        owner: node.owner.clone(),
        namespaces: settings.namespaces.clone(),
        storage_classes: settings.storage_classes.clone(),
        supervisor: supervisor.clone(),
        events: events.clone(),
        grace: reflect::GRACE,
    });
    events::follow(events::Setup {
        lower: node.lower.client().clone(),
        owner: node.owner.clone(),
        namespaces: settings.namespaces.clone(),
        pods: Arc::<VirtualNode>::clone(node),
        supervisor: supervisor.clone(),
        events,
    });
    // What was known of pods in an earlier term is given anew, and what was not told then is told now.
    node.memory.lock().clear();
    node.outbox.clear();
    pass_on(node, told, &supervisor);
    abandoning::stand_by(node, &supervisor);
    patrol(node, &supervisor);
    serve_claims(node, &supervisor);
    let term = Arc::new(Term { reflector, supervisor });
    if let Some(earlier) = node.term.lock().replace(Arc::clone(&term)) {
        earlier.supervisor.stop();
    }
    let guard = Guard { node: Arc::clone(node), term };
    let changes = node.outbox.changes();
    let guarded = stream::unfold((changes, guard), |(mut changes, guard)| async move {
        let change = changes.next().await?;
        Some((change, (changes, guard)))
    });
    guarded.boxed()
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.term.supervisor.stop();
        let mut term = self.node.term.lock();
        if term.as_ref().is_some_and(|term| Arc::ptr_eq(term, &self.term)) {
            *term = None;
        }
    }
}

/// Tells on pods what their copies have to say.
fn pass_on(node: &Arc<VirtualNode>, mut told: mpsc::Receiver<PodEvent>, supervisor: &Supervisor) {
    let (outbox, guard) = (Arc::clone(&node.outbox), supervisor.clone());
    supervisor.spawn("events of copies", task::Kind::Work, async move {
        let pass = async {
            while let Some(event) = told.recv().await {
                outbox.event(event);
            }
        };
        tokio::select! {
            () = pass => {}
            () = guard.stopping() => {}
        }
    });
}

/// Serves claims once it is known which cluster it is that their volumes are in.
fn serve_claims(node: &Arc<VirtualNode>, supervisor: &Supervisor) {
    let (weak, owned, guard) = (Arc::downgrade(node), supervisor.clone(), supervisor.clone());
    let mut changed = node.standing.subscribe();
    supervisor.spawn("claims of the node", task::Kind::Work, async move {
        let known = async {
            loop {
                let node = weak.upgrade()?;
                let cluster = node.lower.identity().known().cluster;
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
        storage::follow(storage::Setup {
            upper: node.upper.client.clone(),
            lower: node.lower.client().clone(),
            owner: node.owner.clone(),
            namespaces: node.settings.namespaces.clone(),
            cluster,
            supervisor: owned,
        });
    });
}

/// Looks at what changes by the mere passing of time.
fn patrol(node: &Arc<VirtualNode>, supervisor: &Supervisor) {
    let (node, guard) = (Arc::downgrade(node), supervisor.clone());
    supervisor.spawn("lost pods", task::Kind::Work, async move {
        let mut turns = tokio::time::interval(PATROL);
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
            for (pod, lower) in node.own() {
                if node.is_stuck(&lower) {
                    node.look(&pod);
                }
            }
        }
    });
}
