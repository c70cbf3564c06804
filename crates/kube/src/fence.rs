//! Until when writes may begin.
//!
//! A process that holds a lease may write for as long as nobody else can have taken it. That is a matter of time alone: a
//! process that was paused learns that it lost the lease only after it has gone on, and by then it must not have written.
//! So every write asks the fence, and not its memory of having been the leader.

use std::{fmt, future::Future, pin::pin, sync::Arc, task::Poll};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use vk_supervisor::Clock;

use crate::{Error, Kind};

/// Lets writes through until a time that whoever holds the lease moves on. Clones share it. It begins closed.
#[derive(Clone)]
pub struct Fence {
    until: Arc<watch::Sender<Option<Deadline>>>,
    clock: Clock,
}

/// The first moment at which no write may begin, by two clocks: the steady one stands still while the machine is
/// suspended, and the wall clock can be set back. Whichever is there first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// By the steady clock.
    pub steady: Instant,
    /// By the wall clock.
    pub wall: Timestamp,
}

/// Closes a fence when it is dropped, whatever the reason.
#[derive(Debug)]
pub struct CloseOnDrop(Option<Fence>);

// === impl Fence ===

impl Fence {
    /// A fence that is closed.
    pub fn new(clock: Clock) -> Self {
        Self { until: Arc::new(watch::Sender::new(None)), clock }
    }

    /// Moves the limit; `None` closes the fence at once, also for requests that are under way.
    pub fn set(&self, limit: Option<Deadline>) {
        self.until.send_if_modified(|known| std::mem::replace(known, limit) != limit);
    }

    /// Whether a write may begin now.
    pub fn is_open(&self) -> bool {
        let limit = *self.until.borrow();
        limit.is_some_and(|limit| limit.holds(&self.clock))
    }

    /// Closes the fence when the answer is dropped.
    pub fn close_on_drop(&self) -> CloseOnDrop {
        CloseOnDrop(Some(self.clone()))
    }

    /// Resolves when writes may begin.
    pub async fn opened(&self) {
        let mut limits = self.until.subscribe();
        let open = |limit: &Option<Deadline>| limit.is_some_and(|limit| limit.holds(&self.clock));
        // The sender lives in `self`: this waits and cannot fail.
        if limits.wait_for(open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when no write may be under way any more.
    async fn closed(&self) {
        let mut limits = self.until.subscribe();
        loop {
            let Some(limit) = (*limits.borrow_and_update()).filter(|limit| limit.holds(&self.clock)) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(limit.steady) => {}
                _ = limits.changed() => {}
            }
        }
    }

    /// Does this, unless the fence is closed, and not for longer than it is open. What is under way when it closes is
    /// dropped, which takes the request back where that is still possible.
    pub async fn guard<T>(&self, request: impl Future<Output = T>) -> Result<T, Error> {
        let (mut closed, mut request) = (pin!(self.closed()), pin!(request));
        std::future::poll_fn(|context| {
            // Before the request is even looked at: a process that was paused wakes up here.
            if !self.is_open() || closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(Error::fenced()));
            }
            request.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

impl Default for Fence {
    fn default() -> Self {
        Self::new(Clock::system())
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&*self.until.borrow()).finish()
    }
}

// === impl Deadline ===

impl Deadline {
    fn holds(&self, clock: &Clock) -> bool {
        Instant::now() < self.steady && clock.now() < self.wall
    }
}

// === impl CloseOnDrop ===

impl CloseOnDrop {
    /// For a client without a fence, whose end means nothing.
    pub fn nothing() -> Self {
        Self(None)
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(fence) = &self.0 {
            fence.set(None);
        }
    }
}

impl Error {
    /// A write that must not begin, because the lease may be somebody else's by now.
    pub(crate) fn fenced() -> Self {
        Self::new(Kind::Fenced, "no write may begin before the node's lease is renewed")
    }
}

#[cfg(test)]
mod tests;
