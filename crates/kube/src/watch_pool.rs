//! Places for watches of single objects, on connections that they share.
//!
//! A node that runs many pods watches many objects, each of which hardly ever changes. A connection for each would cost more
//! than they do, and one for all has room for a hundred. There is a limit; whoever finds no place reads now and then instead.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::WATCH_CONNECTIONS;

/// Watches on one connection: the server allows a hundred streams, and a watch that is being renewed may take two.
const PLACES: usize = 80;

/// All places of a client and its clones.
#[derive(Debug)]
pub(crate) struct WatchPool([Arc<Semaphore>; WATCH_CONNECTIONS]);

/// A place on a lane, until dropped.
#[derive(Debug)]
pub struct WatchSlot {
    pub(crate) number: usize,
    _place: OwnedSemaphorePermit,
}

impl Default for WatchPool {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::new(Semaphore::new(PLACES))))
    }
}

impl WatchPool {
    /// A place on the first lane that has one, so that few connections are open while there are few watches.
    pub(crate) fn place(&self) -> Option<WatchSlot> {
        self.0.iter().enumerate().find_map(|(number, connection)| {
            let place = Arc::clone(connection).try_acquire_owned().ok()?;
            Some(WatchSlot { number, _place: place })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_fill_one_after_another_and_a_place_that_is_left_is_taken_again() {
        let watch_pool = WatchPool::default();
        let mut taken: Vec<WatchSlot> = std::iter::from_fn(|| watch_pool.place()).collect();
        assert_eq!(taken.len(), WATCH_CONNECTIONS * PLACES);
        assert!(taken.is_sorted_by_key(|slot| slot.number));
        taken.remove(PLACES + 1);
        assert_eq!(watch_pool.place().map(|slot| slot.number), Some(1));
    }
}
