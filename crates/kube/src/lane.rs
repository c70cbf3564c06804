//! Places for watches of single objects, on connections that they share.
//!
//! A node that runs many pods watches many objects, each of which hardly ever changes. A connection for each would cost more
//! than they do, and one for all has room for a hundred. There is a limit; whoever finds no place reads now and then instead.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::LANES;

/// Watches on one connection: the server allows a hundred streams, and a watch that is being renewed may take two.
const PLACES: usize = 80;

/// All places of a client and its clones.
#[derive(Debug)]
pub(crate) struct Lanes([Arc<Semaphore>; LANES]);

/// A place on a lane, until dropped.
#[derive(Debug)]
pub struct Lane {
    pub(crate) number: usize,
    _place: OwnedSemaphorePermit,
}

impl Default for Lanes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::new(Semaphore::new(PLACES))))
    }
}

impl Lanes {
    /// A place on the first lane that has one, so that few connections are open while there are few watches.
    pub(crate) fn place(&self) -> Option<Lane> {
        self.0.iter().enumerate().find_map(|(number, lane)| {
            let place = Arc::clone(lane).try_acquire_owned().ok()?;
            Some(Lane { number, _place: place })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_fill_one_after_another_and_a_place_that_is_left_is_taken_again() {
        let lanes = Lanes::default();
        let mut taken: Vec<Lane> = std::iter::from_fn(|| lanes.place()).collect();
        assert_eq!(taken.len(), LANES * PLACES);
        assert!(taken.is_sorted_by_key(|lane| lane.number));
        taken.remove(PLACES + 1);
        assert_eq!(lanes.place().map(|lane| lane.number), Some(1));
    }
}
