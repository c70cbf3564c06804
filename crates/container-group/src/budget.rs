//! The budget of calls, shared by all nodes of one account.
//!
//! There is a token bucket for all calls and one for each action. Who waits is served by priority: deletes, creates, what users ask for, polls.
//! Actions of one priority take turns, and so do lookups of single groups; within an action it is the order of arrival. Polls have a share that
//! the others cannot take, so that they never starve, and that is not lost when there is nothing to poll.

mod buckets;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use vk_supervisor::{Supervisor, task::Kind};

use self::buckets::{Buckets, Queue};
use crate::backend::{Action, CallError, Caps, Class, Rate};

/// Calls wait no longer than this because the cloud, or a proxy, has asked for it.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_mins(5);
/// How long the driver sleeps at most.
const LONGEST_SLEEP: Duration = Duration::from_hours(1);

/// Limits of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// All calls.
    pub total: Rate,
    /// Calls by action.
    pub actions: BTreeMap<Action, Rate>,
}

/// Lets calls begin at the rate that the cloud allows. Clones share the budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    buckets: Mutex<Buckets<oneshot::Sender<()>>>,
    changed: Notify,
}

// === impl Limits ===

impl Limits {
    /// The user's limit for all calls, and the cloud's own for each action.
    pub fn new(total: Rate, caps: &Caps) -> Self {
        Self { total, actions: caps.rates.clone() }
    }
}

// === impl Budget ===

impl Budget {
    /// A full budget. Its task runs on the supervisor.
    pub fn new(limits: &Limits, supervisor: &Supervisor) -> Self {
        let inner = Arc::new(Inner {
            start: Instant::now(),
            buckets: Mutex::new(Buckets::new(limits)),
            changed: Notify::new(),
        });
        let (this, stopping) = (Arc::clone(&inner), supervisor.clone());
        supervisor.spawn("budget of calls", Kind::Critical, async move {
            tokio::select! {
                () = this.serve() => {}
                () = stopping.stopping() => {}
            }
        });
        Self(inner)
    }

    /// Waits until a call may begin. Dropping the future gives up the place.
    pub async fn acquire(&self, action: Action) {
        self.wait(Queue { action, is_lookup: false }).await;
    }

    /// The same for [`Action::Observe`] of a single group: it does not hold up the lists.
    pub async fn acquire_lookup(&self) {
        self.wait(Queue { action: Action::Observe, is_lookup: true }).await;
    }

    async fn wait(&self, queue: Queue) {
        let (sender, turn) = oneshot::channel();
        self.0.buckets.lock().push(queue, sender);
        self.0.changed.notify_one();
        // The sender is dropped only with the budget, when the process stops.
        if turn.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// About how long a call that begins to wait now would wait.
    pub fn estimated_wait(&self, action: Action) -> Duration {
        self.0.buckets.lock().estimated_wait(self.0.elapsed(), action)
    }

    /// Learns from the answer to a call: a throttled action becomes slower.
    pub fn record<T>(&self, action: Action, result: &Result<T, CallError>) {
        if let Err(CallError { class: Class::Throttled { after }, .. }) = result {
            self.0.buckets.lock().throttled(self.0.elapsed(), action, *after);
        }
    }
}

// === impl Inner ===

impl Inner {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Hands out turns, for ever.
    async fn serve(&self) {
        loop {
            let changed = self.changed.notified();
            let next = self.grant();
            let wake = self.start + next.unwrap_or_else(|| self.elapsed() + LONGEST_SLEEP);
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Hands out the turns that are due, and returns when the next one is.
    fn grant(&self) -> Option<Duration> {
        let mut buckets = self.buckets.lock();
        let now = self.elapsed();
        buckets.forget(oneshot::Sender::is_closed);
        while let Some(sender) = buckets.pop(now) {
            // Whoever has gone meanwhile costs a turn.
            let _ = sender.send(());
        }
        buckets.next_turn(now)
    }
}

#[cfg(test)]
mod tests;
