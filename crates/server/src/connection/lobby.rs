//! Where connections wait until a known caller has come on them. There is room for so many; when one more comes, the one that
//! has waited longest must go. So strangers can take each other's place, and nobody else's.

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

#[derive(Clone)]
pub(super) struct Lobby(Arc<Inside>);

struct Inside {
    limit: usize,
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, CancellationToken>>,
    metrics: Metrics,
}

/// A connection that waits, or has waited.
pub(super) struct Guest {
    lobby: Lobby,
    number: u64,
    evicted: CancellationToken,
}

// === impl Lobby ===

impl Lobby {
    pub(super) fn new(limit: usize, metrics: Metrics) -> Self {
        let inside =
            Inside { limit: limit.max(1), next: AtomicU64::default(), waiting: Mutex::default(), metrics };
        Self(Arc::new(inside))
    }

    pub(super) fn enter(&self) -> Guest {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let evicted = CancellationToken::new();
        let mut waiting = self.0.waiting.lock();
        waiting.insert(number, evicted.clone());
        while waiting.len() > self.0.limit {
            let Some((_, oldest)) = waiting.pop_first() else { break };
            oldest.cancel();
            self.0.metrics.evicted.inc();
        }
        Guest { lobby: self.clone(), number, evicted }
    }
}

// === impl Guest ===

impl Guest {
    /// It need not wait any more.
    pub(super) fn admit(&self) {
        self.lobby.0.waiting.lock().remove(&self.number);
    }

    /// Resolves when it must go.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.admit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stranger_too_many_displaces_the_oldest_and_never_a_known_caller() {
        let lobby = Lobby::new(2, Metrics::default());
        let known = lobby.enter();
        known.admit();
        let guests: Vec<Guest> = (0..3).map(|_| lobby.enter()).collect();
        let gone: Vec<bool> = guests.iter().map(|guest| guest.evicted.is_cancelled()).collect();
        assert_eq!(gone, [true, false, false]);
        assert!(!known.evicted.is_cancelled());
    }

    #[test]
    fn a_connection_that_ends_makes_room() {
        let lobby = Lobby::new(1, Metrics::default());
        drop(lobby.enter());
        let second = lobby.enter();
        assert!(!second.evicted.is_cancelled());
        assert_eq!(lobby.0.waiting.lock().len(), 1);
    }
}
