//! Limits writes to the time for which a lease is held: that of the node, or of another elected component.
//!
//! A process that holds a lease may write as long as nobody else can have taken it. A process that was paused notices only
//! afterwards that it lost the lease, and must not write before it notices. So every write checks the fence, which compares
//! clocks, and not a flag that says "leader".

pub(crate) mod body;

use std::{fmt, future::Future, pin::pin, sync::Arc, task::Poll};

use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use vk_supervisor::Clock;

use crate::{Error, Kind};

/// Allows writes until a deadline, which the holder of the lease extends. Clones share it. A new fence is closed.
#[derive(Clone)]
pub struct Fence {
    until: Arc<watch::Sender<Option<Deadline>>>,
    clock: Clock,
}

/// The time from which no write may begin, by two clocks: the monotonic clock stops while the host is suspended, and the wall
/// clock can be set back. The earlier one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// By the monotonic clock.
    pub steady: Instant,
    /// By the wall clock.
    pub wall: Timestamp,
}

/// Closes a fence when dropped.
#[derive(Debug)]
pub struct CloseOnDrop(Option<Fence>);

// === impl Fence ===

impl Fence {
    /// Creates a closed fence.
    pub fn new(clock: Clock) -> Self {
        Self { until: Arc::new(watch::Sender::new(None)), clock }
    }

    /// Sets the deadline. `None` closes the fence at once and cancels requests that are under way.
    pub fn set(&self, deadline: Option<Deadline>) {
        self.until.send_if_modified(|current| std::mem::replace(current, deadline) != deadline);
    }

    /// Whether a write may begin now.
    pub fn is_open(&self) -> bool {
        let deadline = *self.until.borrow();
        deadline.is_some_and(|deadline| deadline.holds(&self.clock))
    }

    /// Returns a guard that closes the fence when it is dropped.
    pub fn close_on_drop(&self) -> CloseOnDrop {
        CloseOnDrop(Some(self.clone()))
    }

    /// Resolves when writes may begin.
    pub async fn opened(&self) {
        let mut deadlines = self.until.subscribe();
        let open = |deadline: &Option<Deadline>| deadline.is_some_and(|deadline| deadline.holds(&self.clock));
        // `self` holds the sender, so this cannot fail.
        if deadlines.wait_for(open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the fence is closed.
    async fn closed(&self) {
        let mut deadlines = self.until.subscribe();
        loop {
            let Some(deadline) =
                (*deadlines.borrow_and_update()).filter(|deadline| deadline.holds(&self.clock))
            else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(deadline.steady) => {}
                _ = deadlines.changed() => {}
            }
        }
    }

    /// Runs a request while the fence is open. When the fence closes, the request is dropped, which cancels it where that is still
    /// possible.
    pub async fn guard<T>(&self, request: impl Future<Output = T>) -> Result<T, Error> {
        let (mut closed, mut request) = (pin!(self.closed()), pin!(request));
        std::future::poll_fn(|context| {
            // Checked before the request is polled: a paused process may wake up here.
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
    /// A guard that does nothing, for a client without a fence.
    pub fn disabled() -> Self {
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
    /// A write that must not begin, because the lease may have another holder by now.
    pub(crate) fn fenced() -> Self {
        Self::new(Kind::Fenced, "no write may begin before the node's lease is renewed")
    }
}

#[cfg(test)]
mod tests;
