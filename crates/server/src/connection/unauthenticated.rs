//! Limits connections without an authenticated request. One too many closes the oldest of them: unauthenticated clients can
//! displace each other, but nobody else.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::Metrics;

/// Connections of one node without an authenticated request.
pub(super) const DEFAULT_LIMIT: usize = 1_000;

#[derive(Clone)]
pub(super) struct UnauthenticatedLimiter(Arc<LimiterState>);

struct LimiterState {
    limit: usize,
    next_id: AtomicU64,
    connections: Mutex<BTreeMap<u64, CancellationToken>>,
    metrics: Metrics,
}

/// A connection, unauthenticated until released.
pub(super) struct UnauthenticatedGuard {
    limiter: UnauthenticatedLimiter,
    id: u64,
    evicted: CancellationToken,
}

// === impl UnauthenticatedLimiter ===

impl UnauthenticatedLimiter {
    pub(super) fn new(limit: usize, metrics: Metrics) -> Self {
        let state = LimiterState {
            limit: limit.max(1),
            next_id: AtomicU64::default(),
            connections: Mutex::default(),
            metrics,
        };
        Self(Arc::new(state))
    }

    pub(super) fn register(&self) -> UnauthenticatedGuard {
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let evicted = CancellationToken::new();
        let mut connections = self.0.connections.lock();
        connections.insert(id, evicted.clone());
        while connections.len() > self.0.limit {
            let Some((_, oldest)) = connections.pop_first() else { break };
            oldest.cancel();
            self.0.metrics.evicted.inc();
        }
        UnauthenticatedGuard { limiter: self.clone(), id, evicted }
    }
}

// === impl UnauthenticatedGuard ===

impl UnauthenticatedGuard {
    /// Stops counting the connection: it is authenticated or closed.
    pub(super) fn release(&self) {
        self.limiter.0.connections.lock().remove(&self.id);
    }

    /// Resolves when the connection must be closed.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for UnauthenticatedGuard {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_too_many_evicts_the_oldest_and_never_an_authenticated_one() {
        let limiter = UnauthenticatedLimiter::new(2, Metrics::default());
        let authenticated = limiter.register();
        authenticated.release();
        let guards: Vec<UnauthenticatedGuard> = (0..3).map(|_| limiter.register()).collect();
        let gone: Vec<bool> = guards.iter().map(|guard| guard.evicted.is_cancelled()).collect();
        assert_eq!(gone, [true, false, false]);
        assert!(!authenticated.evicted.is_cancelled());
    }

    #[test]
    fn a_closed_connection_makes_room() {
        let limiter = UnauthenticatedLimiter::new(1, Metrics::default());
        drop(limiter.register());
        let second = limiter.register();
        assert!(!second.evicted.is_cancelled());
        assert_eq!(limiter.0.connections.lock().len(), 1);
    }
}
