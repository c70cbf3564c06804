//! Trying again.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_supervisor::Backoff;

/// One thing that is done again and again until it succeeds.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) busy: bool,
    pub(super) not_before: Duration,
    pub(super) backoff: Backoff,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(largest: Duration) -> Self {
        Self {
            busy: false,
            not_before: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(100), largest),
        }
    }

    pub(super) fn free(&self, now: Duration) -> bool {
        !self.busy && now >= self.not_before
    }

    pub(super) fn done(&mut self) {
        self.busy = false;
        self.not_before = Duration::ZERO;
        self.backoff.reset();
    }

    pub(super) fn failed(&mut self, now: Duration, asked: Option<Duration>, rng: &mut StdRng) {
        self.busy = false;
        self.not_before = now + self.backoff.next(asked, rng);
    }

    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        (!self.busy && self.not_before > now).then_some(self.not_before)
    }
}
