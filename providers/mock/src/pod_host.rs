//! A world with a clock: one task lets happen what is due, and subscribers hear of changes.

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

/// Waits are not shorter than this, should clock and timer disagree by less than either can tell.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Where pods live: in this process, for any number of mocks and nodes. It outlives the mocks that use it, so a test can
/// drop one mock and let another find its pods. Clones are the same host; its task ends with the last of them.
#[derive(Clone)]
pub struct PodHost(Arc<Driver>);

struct Driver {
    inner: Arc<Inner>,
    _task: JoinSet<()>,
}

struct Inner {
    clock: Clock,
    state: Mutex<State>,
    /// Wakes the driver when something is due earlier than it knew.
    earlier: Notify,
}

#[derive(Default)]
struct State {
    world: PodSimulator,
    subscribers: HashMap<Arc<str>, Vec<Subscriber>>,
    last_id: u64,
}

struct Subscriber {
    id: u64,
    outbox: ChangeQueue<()>,
    filled: Arc<Notify>,
}

/// One reader of changes; dropping it unsubscribes.
struct Subscription {
    inner: Arc<Inner>,
    node: Arc<str>,
    id: u64,
    filled: Arc<Notify>,
}

// === impl PodHost ===

impl PodHost {
    /// An empty host. Call it inside a tokio runtime: it starts a task.
    pub fn new(clock: Clock) -> Self {
        let inner = Arc::new(Inner { clock, state: Mutex::default(), earlier: Notify::new() });
        let mut driver = JoinSet::new();
        driver.spawn(drive(Arc::clone(&inner)));
        Self(Arc::new(Driver { inner, _task: driver }))
    }

    /// The time by which its pods live.
    pub fn clock(&self) -> &Clock {
        &self.0.inner.clock
    }

    /// Does one thing with the pods.
    pub fn apply(&self, request: Request) -> Result<Reply> {
        let inner = &self.0.inner;
        let mut state = inner.state.lock();
        let before = state.world.next_deadline();
        let reply = state.world.apply(inner.clock.now(), request);
        state.notify();
        let next = state.world.next_deadline();
        drop(state);
        if next.is_some_and(|next| before.is_none_or(|before| next < before)) {
            inner.earlier.notify_one();
        }
        reply
    }

    /// Changes of the pods of a node from now on: a status for a pod that is there, [`PodChange::Refresh`] for one that is
    /// gone. Of several changes to a pod a slow reader sees the last.
    pub fn changes(&self, node: &str) -> BoxStream<'static, PodChange> {
        let node: Arc<str> = node.into();
        let filled = Arc::new(Notify::new());
        let mut state = self.0.inner.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        let subscriber = Subscriber { id, outbox: ChangeQueue::default(), filled: Arc::clone(&filled) };
        state.subscribers.entry(Arc::clone(&node)).or_default().push(subscriber);
        drop(state);
        let subscription = Subscription { inner: Arc::clone(&self.0.inner), node, id, filled };
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
        f.debug_tuple("PodHost").field(&self.0.inner.state.lock().world).finish()
    }
}

/// Lets happen what is due, for ever.
async fn drive(inner: Arc<Inner>) {
    loop {
        let next = {
            let mut state = inner.state.lock();
            state.world.advance(inner.clock.now());
            state.notify();
            state.world.next_deadline()
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
    /// Puts what changed into the boxes of those who want to know.
    fn notify(&mut self) {
        for change in self.world.take_changes() {
            for subscriber in self.subscribers.get_mut(&change.node).into_iter().flatten() {
                subscriber.outbox.push(&change.pod, ());
                subscriber.filled.notify_one();
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
            self.filled.notified().await;
        }
    }

    fn take(&self) -> Option<PodChange> {
        let mut state = self.inner.state.lock();
        let State { world, subscribers, .. } = &mut *state;
        let own = subscribers.get_mut(&self.node)?.iter_mut().find(|subscriber| subscriber.id == self.id)?;
        let (pod, ()) = own.outbox.pop()?;
        Some(match world.status(&pod) {
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
