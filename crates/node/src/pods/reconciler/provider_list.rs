//! The list of the provider's pods, which is requested from time to time.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_supervisor::Backoff;

use super::effect::{EffectId, EffectIds};

/// The list in flight and the time of the next one.
#[derive(Debug)]
pub(super) struct ProviderList {
    /// The request in flight, and when it was made.
    in_flight: Option<(EffectId, Duration)>,
    due: Duration,
    backoff: Backoff,
    /// The pods were listed once: from then on a pod that is new to us is new to the provider.
    complete: bool,
}

// === impl ProviderList ===

impl ProviderList {
    pub(super) fn new() -> Self {
        Self {
            in_flight: None,
            due: Duration::ZERO,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            complete: false,
        }
    }

    /// Whether the provider's pods are known.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Starts the request that is due.
    pub(super) fn start(&mut self, now: Duration, ids: &mut EffectIds) -> Option<EffectId> {
        if self.in_flight.is_some() || now < self.due {
            return None;
        }
        let id = ids.allocate();
        self.in_flight = Some((id, now));
        Some(id)
    }

    /// The request with this id was answered. Returns when it was made. `None`: it is not the one in flight.
    pub(super) fn complete(&mut self, id: EffectId) -> Option<Duration> {
        self.in_flight.take_if(|(expected, _)| *expected == id).map(|(_, requested_at)| requested_at)
    }

    /// Returns whether it was the first list.
    pub(super) fn succeeded(&mut self, now: Duration, period: Duration) -> bool {
        self.backoff.reset();
        self.due = now + period;
        !std::mem::replace(&mut self.complete, true)
    }

    /// Returns the delay before the next request.
    pub(super) fn failed(
        &mut self,
        now: Duration,
        requested: Option<Duration>,
        rng: &mut StdRng,
    ) -> Duration {
        let delay = self.backoff.next(requested, rng);
        self.due = now + delay;
        delay
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.in_flight.is_none().then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn one_request_is_in_flight_and_the_next_comes_after_a_period_or_a_back_off() {
        let (mut ids, mut rng) = (EffectIds::default(), StdRng::seed_from_u64(1));
        let now = Duration::from_secs(5);
        let mut list = ProviderList::new();
        let first = list.start(now, &mut ids).expect("a request");
        assert_eq!(list.start(now, &mut ids), None);
        assert_eq!(list.deadline(), None);
        assert_eq!(list.complete(first), Some(now));
        let delay = list.failed(now, None, &mut rng);
        assert_eq!(list.deadline(), Some(now + delay));
        let second = list.start(now + delay, &mut ids).expect("another request");
        assert_eq!(list.complete(first), None);
        assert_eq!(list.complete(second), Some(now + delay));
        assert!(list.succeeded(now, Duration::from_mins(1)) && list.is_complete());
        assert_eq!(list.deadline(), Some(now + Duration::from_mins(1)));
        assert!(!list.succeeded(now, Duration::from_mins(1)));
    }
}
