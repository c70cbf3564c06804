//! Slots for watches of single objects on shared connections.
//!
//! A node with many pods watches many objects, which hardly ever change. A connection for each would cost more than the watches,
//! and one connection carries only a hundred. The pool is bounded; callers without a slot read periodically instead.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::WATCH_CONNECTIONS;

/// Watches on one connection: the server allows a hundred streams, and a watch that is being renewed may take two.
const WATCHES_PER_CONNECTION: usize = 80;

/// The slots of a client and its clones.
#[derive(Debug)]
pub(crate) struct WatchPool([Arc<Semaphore>; WATCH_CONNECTIONS]);

/// A slot on one of the connections. Released when dropped.
#[derive(Debug)]
pub struct WatchSlot {
    pub(crate) connection: usize,
    _permit: OwnedSemaphorePermit,
}

impl Default for WatchPool {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::new(Semaphore::new(WATCHES_PER_CONNECTION))))
    }
}

impl WatchPool {
    /// Takes a slot on the first connection that has one, so that few watches open few connections.
    pub(crate) fn acquire(&self) -> Option<WatchSlot> {
        self.0.iter().enumerate().find_map(|(connection, permits)| {
            let permit = Arc::clone(permits).try_acquire_owned().ok()?;
            Some(WatchSlot { connection, _permit: permit })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fill_in_order_and_released_slots_are_reused() {
        let watch_pool = WatchPool::default();
        let mut taken: Vec<WatchSlot> = std::iter::from_fn(|| watch_pool.acquire()).collect();
        assert_eq!(taken.len(), WATCH_CONNECTIONS * WATCHES_PER_CONNECTION);
        assert!(taken.is_sorted_by_key(|slot| slot.connection));
        taken.remove(WATCHES_PER_CONNECTION + 1);
        assert_eq!(watch_pool.acquire().map(|slot| slot.connection), Some(1));
    }
}
