//! Hosts simulated pods: one task advances the simulation when something is due, and notifies subscribers of changes.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use futures::{StreamExt, stream, stream::BoxStream};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use vk_provider::{PodChange, Result};
use vk_supervisor::Clock;

use crate::{
    change_queue::ChangeQueue,
    simulator::{PodSimulator, Reply, Request},
    time::{between, default_clock},
};

/// The minimum wait, in case the clock and the timer disagree slightly.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Hosts the pods of any number of mocks and nodes in this process. It outlives the mocks that use it, so that a test can
/// drop one mock and open another with the same pods. Clones share the host; its task ends with the last clone.
#[derive(Clone)]
pub struct PodHost(Arc<Driver>);

struct Driver {
    inner: Arc<Inner>,
    _task: JoinSet<()>,
}

struct Inner {
    clock: Clock,
    state: Mutex<State>,
    /// Wakes the driver when the next deadline has become earlier.
    earlier: Notify,
}

#[derive(Default)]
struct State {
    simulator: PodSimulator,
    subscribers: HashMap<Arc<str>, Vec<Subscriber>>,
    last_id: u64,
}

struct Subscriber {
    id: u64,
    queue: ChangeQueue<()>,
    changed: Arc<Notify>,
}

/// A subscription to changes. Dropping it unsubscribes.
struct Subscription {
    inner: Arc<Inner>,
    node: Arc<str>,
    id: u64,
    changed: Arc<Notify>,
}

// === impl PodHost ===

impl PodHost {
    /// Creates an empty host. Call it inside a tokio runtime: it starts a task.
    pub fn new(clock: Clock) -> Self {
        let inner = Arc::new(Inner { clock, state: Mutex::default(), earlier: Notify::new() });
        let mut driver = JoinSet::new();
        driver.spawn(drive(Arc::clone(&inner)));
        Self(Arc::new(Driver { inner, _task: driver }))
    }

    /// The clock of its pods.
    pub fn clock(&self) -> &Clock {
        &self.0.inner.clock
    }

    /// Executes a request.
    pub fn apply(&self, request: Request) -> Result<Reply> {
        let inner = &self.0.inner;
        let mut state = inner.state.lock();
        let before = state.simulator.next_deadline();
        let reply = state.simulator.apply(inner.clock.now(), request);
        state.notify();
        let next = state.simulator.next_deadline();
        drop(state);
        if next.is_some_and(|next| before.is_none_or(|before| next < before)) {
            inner.earlier.notify_one();
        }
        reply
    }

    /// Changes of the pods of a node from now on: the status of a pod, or [`PodChange::Refresh`] if it no longer exists. A
    /// slow reader sees only the last of several changes of a pod.
    pub fn changes(&self, node: &str) -> BoxStream<'static, PodChange> {
        let node: Arc<str> = node.into();
        let changed = Arc::new(Notify::new());
        let mut state = self.0.inner.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        let subscriber = Subscriber { id, queue: ChangeQueue::default(), changed: Arc::clone(&changed) };
        state.subscribers.entry(Arc::clone(&node)).or_default().push(subscriber);
        drop(state);
        let subscription = Subscription { inner: Arc::clone(&self.0.inner), node, id, changed };
        stream::unfold(subscription, |subscription| async move {
            let change = subscription.next().await;
            Some((change, subscription))
        })
        .boxed()
    }
}

impl Default for PodHost {
    /// An empty host whose clock starts at the current time and moves with tokio's.
    fn default() -> Self {
        Self::new(default_clock())
    }
}

impl fmt::Debug for PodHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PodHost").field(&self.0.inner.state.lock().simulator).finish()
    }
}

/// Advances the simulation whenever something is due.
async fn drive(inner: Arc<Inner>) {
    loop {
        let next = {
            let mut state = inner.state.lock();
            state.simulator.advance(inner.clock.now());
            state.notify();
            state.simulator.next_deadline()
        };
        match next {
            Some(next) => {
                let wait = between(inner.clock.now(), next).max(SHORTEST_WAIT);
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = inner.earlier.notified() => {}
                }
            }
            None => inner.earlier.notified().await,
        }
    }
}

// === impl State ===

impl State {
    /// Queues changes for the subscribers.
    fn notify(&mut self) {
        for change in self.simulator.take_changes() {
            for subscriber in self.subscribers.get_mut(&change.node).into_iter().flatten() {
                subscriber.queue.push(&change.pod, ());
                subscriber.changed.notify_one();
            }
        }
    }
}

// === impl Subscription ===

impl Subscription {
    async fn next(&self) -> PodChange {
        loop {
            if let Some(change) = self.take() {
                return change;
            }
            self.changed.notified().await;
        }
    }

    fn take(&self) -> Option<PodChange> {
        let mut state = self.inner.state.lock();
        let State { simulator, subscribers, .. } = &mut *state;
        let own = subscribers.get_mut(&self.node)?.iter_mut().find(|subscriber| subscriber.id == self.id)?;
        let (pod, ()) = own.queue.pop()?;
        Some(match simulator.status(&pod) {
            Some(status) => PodChange::Status(pod, Box::new(status)),
            None => PodChange::Refresh(pod),
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        if let Some(subscribers) = state.subscribers.get_mut(&self.node) {
            subscribers.retain(|subscriber| subscriber.id != self.id);
            if subscribers.is_empty() {
                state.subscribers.remove(&self.node);
            }
        }
    }
}
