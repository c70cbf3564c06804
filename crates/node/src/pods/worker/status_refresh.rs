//! Reads of the pod's status from the provider: when the next one is due, and what an answer is worth.

use std::time::Duration;

use rand::rngs::StdRng;
use vk_supervisor::Backoff;

use crate::pods::reconciler::effect::{EffectId, EffectIds};

/// How soon a provider that does not push is asked again after a change; the period doubles while nothing changes.
const FIRST_PERIOD: Duration = Duration::from_millis(250);
/// How often a pod that is being stopped is read.
const STOPPING_PERIOD: Duration = Duration::from_secs(2);

/// A read that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusRead {
    id: EffectId,
    /// A lifecycle call began or ended while it was in flight.
    pub(super) stale: bool,
    /// The provider pushed a status meanwhile, or said that it has nothing of the pod.
    pub(super) superseded: bool,
}

/// The read in flight and the time of the next one.
#[derive(Debug)]
pub(super) struct StatusRefresh {
    in_flight: Option<StatusRead>,
    due: Option<Duration>,
    /// How many reports in a row changed nothing.
    unchanged: u32,
    /// For reads that fail.
    backoff: Backoff,
}

// === impl StatusRefresh ===

impl StatusRefresh {
    pub(super) fn new() -> Self {
        Self {
            in_flight: None,
            due: None,
            unchanged: 0,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// A read is due now, also when one is in flight: its answer may be older than the reason for this one.
    pub(super) fn request(&mut self, now: Duration) {
        self.due = Some(now);
    }

    /// No read is due.
    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    /// A lifecycle call began or ended.
    pub(super) fn mark_stale(&mut self) {
        self.in_flight.iter_mut().for_each(|read| read.stale = true);
    }

    /// The provider said something newer than the answer to the read in flight.
    pub(super) fn supersede(&mut self) {
        self.in_flight.iter_mut().for_each(|read| read.superseded = true);
    }

    /// Starts the read that is due.
    pub(super) fn start(&mut self, now: Duration, ids: &mut EffectIds) -> Option<EffectId> {
        if self.is_in_flight() || self.due.is_none_or(|due| due > now) {
            return None;
        }
        self.due = None;
        let id = ids.allocate();
        self.in_flight = Some(StatusRead { id, stale: false, superseded: false });
        Some(id)
    }

    /// The read with this id was answered. `None`: it is not the one in flight.
    pub(super) fn complete(&mut self, id: EffectId) -> Option<StatusRead> {
        self.in_flight.take_if(|read| read.id == id)
    }

    /// The provider answered. `next` is when to read again, unless a read was requested meanwhile.
    pub(super) fn answered(&mut self, next: Option<Duration>) {
        self.backoff.reset();
        self.due = self.due.or(next);
    }

    /// The read failed, and `next` is when it would have been repeated.
    pub(super) fn failed(
        &mut self,
        now: Duration,
        next: Option<Duration>,
        requested: Option<Duration>,
        rng: &mut StdRng,
    ) {
        let retry = now + self.backoff.next(requested, rng);
        self.due = Some(self.due.or(next).map_or(retry, |due| due.clamp(now, retry)));
    }

    /// The provider reported a status.
    pub(super) fn reported(&mut self, changed: bool) {
        self.unchanged = if changed { 0 } else { self.unchanged.saturating_add(1) };
    }

    /// When to read again without being asked: often while the pod stops, and otherwise as often as the provider wants to
    /// be polled. Where something has just changed, something else soon will.
    pub(super) fn next_period(&self, stopping: bool, poll: Option<Duration>) -> Option<Duration> {
        let soon = FIRST_PERIOD.saturating_mul(1 << self.unchanged.min(16));
        let poll = poll.map(|poll| poll.min(soon));
        if stopping { Some(poll.map_or(STOPPING_PERIOD, |poll| poll.min(STOPPING_PERIOD))) } else { poll }
    }

    /// When the next read is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.due.filter(|_| !self.is_in_flight())
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    const NOW: Duration = Duration::from_mins(1);

    #[test]
    fn one_read_is_in_flight_and_a_request_meanwhile_is_followed_by_another() {
        let mut ids = EffectIds::default();
        let mut refresh = StatusRefresh::new();
        refresh.request(NOW);
        let id = refresh.start(NOW, &mut ids).expect("a read");
        refresh.request(NOW);
        assert_eq!(refresh.start(NOW, &mut ids), None);
        assert!(refresh.complete(id).is_some());
        refresh.answered(None);
        let second = refresh.start(NOW, &mut ids).expect("another read");
        assert_eq!(refresh.complete(id), None, "an answer is never matched with a later read");
        assert!(refresh.complete(second).is_some());
    }

    #[test]
    fn an_answer_knows_what_happened_while_it_was_in_flight() {
        let mut ids = EffectIds::default();
        let mut refresh = StatusRefresh::new();
        refresh.mark_stale();
        refresh.supersede();
        refresh.request(NOW);
        let id = refresh.start(NOW, &mut ids).expect("a read");
        refresh.supersede();
        let read = refresh.complete(id).expect("the read in flight");
        assert_eq!((read.stale, read.superseded), (false, true));
    }

    #[test]
    fn failed_reads_are_repeated_less_and_less_often() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut refresh = StatusRefresh::new();
        refresh.failed(NOW, None, None, &mut rng);
        assert!(refresh.deadline().is_some_and(|due| due > NOW && due <= NOW + Duration::from_secs(1)));
        for _ in 0..10 {
            refresh.stop();
            refresh.failed(NOW, None, None, &mut rng);
        }
        assert!(refresh.deadline().is_some_and(|due| due >= NOW + Duration::from_secs(15)));
    }

    #[test]
    fn polling_slows_down_while_nothing_changes_and_a_stopping_pod_is_read_every_two_seconds() {
        let poll = Some(Duration::from_secs(10));
        let mut refresh = StatusRefresh::new();
        assert_eq!(refresh.next_period(false, None), None);
        assert_eq!(refresh.next_period(true, None), Some(STOPPING_PERIOD));
        assert_eq!(refresh.next_period(false, poll), Some(FIRST_PERIOD));
        (0..3).for_each(|_| refresh.reported(false));
        assert_eq!(refresh.next_period(false, poll), Some(8 * FIRST_PERIOD));
        (0..9).for_each(|_| refresh.reported(false));
        assert_eq!(refresh.next_period(false, poll), poll);
        refresh.reported(true);
        assert_eq!(refresh.next_period(false, poll), Some(FIRST_PERIOD));
    }
}
