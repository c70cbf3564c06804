//! Permits to write to the API server, which all nodes of a client share.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A node's access to the write limiter. At most one request for a permit is outstanding, and it keeps its place in the queue
/// of the limiter, whatever else happens to the node meanwhile.
pub(super) struct WritePermits {
    limiter: Arc<Semaphore>,
    request: Option<BoxFuture<'static, OwnedSemaphorePermit>>,
}

// === impl WritePermits ===

impl WritePermits {
    pub(super) fn new(limiter: Arc<Semaphore>) -> Self {
        Self { limiter, request: None }
    }

    /// How many permits are free now.
    pub(super) fn available(&self) -> usize {
        self.limiter.available_permits()
    }

    /// A permit that is free now.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limiter).try_acquire_owned().ok()
    }

    /// Requests a permit, unless a request is outstanding.
    pub(super) fn request(&mut self) {
        let limiter = Arc::clone(&self.limiter);
        self.request.get_or_insert_with(|| {
            async move {
                match limiter.acquire_owned().await {
                    Ok(permit) => permit,
                    // Nobody closes the limiter.
                    Err(_) => std::future::pending().await,
                }
            }
            .boxed()
        });
    }

    /// Gives up the place in the queue. A request that nobody polls would keep the permit that it is given.
    pub(super) fn cancel_request(&mut self) {
        self.request = None;
    }

    /// Resolves when the requested permit is there. A call that is dropped before that does not lose the place.
    pub(super) async fn acquired(&mut self) -> OwnedSemaphorePermit {
        let Some(request) = &mut self.request else { return std::future::pending().await };
        let permit = request.await;
        self.request = None;
        permit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancelled_request_leaves_its_permit_to_others() {
        let limiter = Arc::new(Semaphore::new(1));
        let taken = Arc::clone(&limiter).try_acquire_owned().unwrap();
        let (mut stopped, mut other) =
            (WritePermits::new(Arc::clone(&limiter)), WritePermits::new(Arc::clone(&limiter)));
        stopped.request();
        assert!(stopped.acquired().now_or_never().is_none());
        other.request();
        assert!(other.acquired().now_or_never().is_none());
        stopped.cancel_request();
        drop(taken);
        assert!(other.acquired().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_request_keeps_its_place_while_other_things_happen() {
        let limiter = Arc::new(Semaphore::new(1));
        let taken = Arc::clone(&limiter).try_acquire_owned().unwrap();
        let (mut first, mut second) = (WritePermits::new(Arc::clone(&limiter)), WritePermits::new(limiter));
        assert!(first.acquired().now_or_never().is_none(), "nothing is requested");
        first.request();
        assert!(first.acquired().now_or_never().is_none());
        second.request();
        // The node is busy with something else again and again.
        for _ in 0..3 {
            assert!(second.acquired().now_or_never().is_none());
            assert!(first.acquired().now_or_never().is_none());
        }
        drop(taken);
        assert!(second.acquired().now_or_never().is_none(), "the first came first");
        let permit = first.acquired().now_or_never().expect("a permit");
        assert!(first.acquired().now_or_never().is_none(), "one permit for one request");
        drop(permit);
        assert!(second.acquired().now_or_never().is_some());
    }
}
