//! The lifecycle call of a pod: at most one is in flight, and it is repeated until it succeeds.

use std::time::Duration;

use rand::rngs::StdRng;

use super::retry::Retry;
use crate::pods::reconciler::effect::{EffectId, EffectIds};

/// The longest delay between two attempts.
const LARGEST_DELAY: Duration = Duration::from_secs(30);

/// A lifecycle call of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// `create_pod`.
    Create,
    /// `update_pod`.
    Update,
    /// `delete_pod`.
    Delete,
}

/// The call in flight, the delay before the next one, and the wait for a missing object.
#[derive(Debug)]
pub(super) struct CallTracker {
    call: Option<(EffectId, CallKind)>,
    retry: Retry,
    /// The wait for an object that the last call did not find.
    reference_wait: Option<EffectId>,
    /// How often in a row a call was repeated because the missing object had appeared.
    reference_retries: u32,
}

// === impl CallTracker ===

impl CallTracker {
    pub(super) fn new() -> Self {
        Self { call: None, retry: Retry::new(LARGEST_DELAY), reference_wait: None, reference_retries: 0 }
    }

    /// The call in flight.
    pub(super) fn in_flight(&self) -> Option<CallKind> {
        self.call.map(|(_, kind)| kind)
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.call.is_none() && self.retry.is_due(now)
    }

    pub(super) fn is_first_attempt(&self) -> bool {
        self.retry.is_first_attempt()
    }

    pub(super) fn start(&mut self, kind: CallKind, ids: &mut EffectIds) -> EffectId {
        let id = ids.allocate();
        self.call = Some((id, kind));
        id
    }

    /// The call with this id was answered. `None`: it is not the one in flight, because it was cancelled.
    pub(super) fn complete(&mut self, id: EffectId) -> Option<CallKind> {
        self.call.take_if(|(expected, _)| *expected == id).map(|(_, kind)| kind)
    }

    /// Gives up the call in flight.
    pub(super) fn cancel(&mut self) -> Option<EffectId> {
        self.call.take().map(|(id, _)| id)
    }

    /// The next call need not wait for the delay of an earlier failure.
    pub(super) fn skip_delay(&mut self) {
        self.retry.skip_delay();
    }

    pub(super) fn delay_until(&mut self, at: Duration) {
        self.retry.delay_until(at);
    }

    /// The provider gave its final answer to a call: no repetition.
    pub(super) fn settled(&mut self) {
        self.retry.succeeded();
    }

    /// The call succeeded. Returns the wait that is no longer needed.
    pub(super) fn succeeded(&mut self) -> Option<EffectId> {
        self.retry.succeeded();
        self.reference_retries = 0;
        self.reference_wait.take()
    }

    pub(super) fn failed(&mut self, now: Duration, requested: Option<Duration>, rng: &mut StdRng) {
        self.retry.failed(now, requested, rng);
    }

    /// Starts the wait for a missing object. Also returns the earlier wait, which is over.
    pub(super) fn await_reference(&mut self, ids: &mut EffectIds) -> (EffectId, Option<EffectId>) {
        let id = ids.allocate();
        (id, self.reference_wait.replace(id))
    }

    /// Ends the wait for a missing object.
    pub(super) fn cancel_wait(&mut self) -> Option<EffectId> {
        self.reference_wait.take()
    }

    /// The missing object exists now: no need to wait. If it turns out again and again to be missing all the same, the
    /// provider and the API server disagree, and the repetitions get slower.
    pub(super) fn reference_available(&mut self, id: EffectId, now: Duration) {
        if self.reference_wait.take_if(|expected| *expected == id).is_none() {
            return;
        }
        let wait = match self.reference_retries {
            0 => Duration::ZERO,
            retries => Duration::from_millis(50) * 2_u32.saturating_pow(retries.min(10)),
        };
        self.reference_retries = self.reference_retries.saturating_add(1);
        self.retry.advance_to(now + wait);
    }

    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        self.retry.deadline(now).filter(|_| self.call.is_none())
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn the_answer_of_a_cancelled_call_does_not_end_the_next_one() {
        let mut ids = EffectIds::default();
        let mut lifecycle = CallTracker::new();
        let create = lifecycle.start(CallKind::Create, &mut ids);
        assert_eq!(lifecycle.cancel(), Some(create));
        let delete = lifecycle.start(CallKind::Delete, &mut ids);
        assert_eq!(lifecycle.complete(create), None);
        assert_eq!(lifecycle.in_flight(), Some(CallKind::Delete));
        assert_eq!(lifecycle.complete(delete), Some(CallKind::Delete));
        assert_eq!(lifecycle.complete(delete), None, "a call is answered once");
    }

    #[test]
    fn only_the_latest_wait_for_an_object_shortens_the_delay() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut ids = EffectIds::default();
        let mut lifecycle = CallTracker::new();
        let now = Duration::from_mins(1);
        lifecycle.failed(now, Some(Duration::from_secs(30)), &mut rng);
        let (first, _) = lifecycle.await_reference(&mut ids);
        let (second, earlier) = lifecycle.await_reference(&mut ids);
        assert_eq!(earlier, Some(first));
        lifecycle.reference_available(first, now);
        assert!(!lifecycle.is_due(now));
        lifecycle.reference_available(second, now);
        assert!(lifecycle.is_due(now));
    }

    #[test]
    fn an_object_that_is_reported_present_and_stays_missing_is_tried_less_and_less_often() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut ids = EffectIds::default();
        let mut lifecycle = CallTracker::new();
        let now = Duration::from_mins(1);
        let mut delays = Vec::new();
        for _ in 0..6 {
            lifecycle.failed(now, Some(Duration::from_mins(10)), &mut rng);
            let (id, _) = lifecycle.await_reference(&mut ids);
            lifecycle.reference_available(id, now);
            delays.push(lifecycle.deadline(now).map_or(Duration::ZERO, |at| at.saturating_sub(now)));
        }
        assert_eq!(delays[0], Duration::ZERO);
        assert!(delays.is_sorted() && delays[5] > delays[1], "{delays:?}");
    }
}
