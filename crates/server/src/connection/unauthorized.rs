//! Limits connections without an authorized request. One too many closes the oldest of them: callers without rights can
//! displace each other, but nobody else. A valid token alone does not count: every ServiceAccount has one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;

/// Connections of one node without an authorized request.
pub(super) const DEFAULT_LIMIT: usize = 1_000;

#[derive(Clone)]
pub(super) struct UnauthorizedLimiter(Arc<LimiterState>);

struct LimiterState {
    limit: usize,
    next_id: AtomicU64,
    connections: Mutex<BTreeMap<u64, CancellationToken>>,
    /// Counts the connections that were closed.
    evicted: Counter,
}

/// A connection, unauthorized until released.
pub(super) struct UnauthorizedGuard {
    limiter: UnauthorizedLimiter,
    id: u64,
    evicted: CancellationToken,
}

// === impl UnauthorizedLimiter ===

impl UnauthorizedLimiter {
    pub(super) fn new(limit: usize, evicted: Counter) -> Self {
        let state = LimiterState {
            limit: limit.max(1),
            next_id: AtomicU64::default(),
            connections: Mutex::default(),
            evicted,
        };
        Self(Arc::new(state))
    }

    pub(super) fn register(&self) -> UnauthorizedGuard {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let evicted = CancellationToken::new();
        let mut connections = self.0.connections.lock();
        connections.insert(id, evicted.clone());
        while connections.len() > self.0.limit {
            let Some((_, oldest)) = connections.pop_first() else { break };
            oldest.cancel();
            self.0.evicted.inc();
        }
        UnauthorizedGuard { limiter: self.clone(), id, evicted }
    }
}

// === impl UnauthorizedGuard ===

impl UnauthorizedGuard {
    /// Stops counting the connection: a request was authorized, or it is closed.
    pub(super) fn release(&self) {
        self.limiter.0.connections.lock().remove(&self.id);
    }

    /// Resolves when the connection must be closed.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for UnauthorizedGuard {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_too_many_evicts_the_oldest_and_never_an_authorized_one() {
        let limiter = UnauthorizedLimiter::new(2, Counter::default());
        let authorized = limiter.register();
        authorized.release();
        let guards: Vec<UnauthorizedGuard> = (0..3).map(|_| limiter.register()).collect();
        let gone: Vec<bool> = guards.iter().map(|guard| guard.evicted.is_cancelled()).collect();
        assert_eq!(gone, [true, false, false]);
        assert!(!authorized.evicted.is_cancelled());
    }

    #[test]
    fn a_closed_connection_makes_room() {
        let limiter = UnauthorizedLimiter::new(1, Counter::default());
        drop(limiter.register());
        let second = limiter.register();
        assert!(!second.evicted.is_cancelled());
        assert_eq!(limiter.0.connections.lock().len(), 1);
    }
}
