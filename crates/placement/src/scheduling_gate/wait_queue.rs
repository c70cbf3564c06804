//! Pods that wait and are evaluated together: pods of equal shape, or of one group.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{fit_answers::PERIOD, pod_state};

/// A queue waits at most this long for a node that does not answer. As soon as it answers anybody, it is asked about all.
const LONGEST_SILENCE: Duration = Duration::from_secs(8);

/// Waiting pods that are evaluated together, and when.
#[derive(Debug)]
pub(super) struct WaitQueue {
    pub(super) pods: BTreeSet<Position>,
    pub(super) namespace: Arc<str>,
    pub(super) priority: i32,
    /// When pods that wait after a failure may be placed.
    delayed: BTreeSet<(Duration, Arc<str>)>,
    /// Pods have come that were not evaluated yet, or could not be placed because too many calls were in flight.
    pub(super) has_new_pods: bool,
    /// Something has changed since the last evaluation.
    pub(super) is_outdated: bool,
    pub(super) last: Option<Duration>,
    /// The number of its last turn, or of the last turn of all before it came.
    pub(super) turn: u64,
    /// Evaluations in a row in which a node did not answer.
    silences: u32,
    /// It is evaluated at the latest then.
    latest: Duration,
    /// It is evaluated at the earliest then.
    pub(super) not_before: Duration,
    /// Why the pods that are left wait.
    pub(super) message: Option<WaitMessage>,
}

/// Why a pod waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitMessage {
    pub(super) reason: &'static str,
    pub(super) text: Arc<str>,
}

/// The position of a pod in its queue: the oldest comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    created: Timestamp,
    pub(super) uid: Arc<str>,
    /// After a failure the pod waits until then.
    not_before: Duration,
}

// === impl WaitQueue ===

impl WaitQueue {
    pub(super) fn new(pod: &Pod, turn: u64) -> Self {
        Self {
            pods: BTreeSet::new(),
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(),
            priority: pod_state::priority(pod),
            delayed: BTreeSet::new(),
            has_new_pods: false,
            is_outdated: false,
            last: None,
            turn,
            silences: 0,
            latest: Duration::ZERO,
            not_before: Duration::ZERO,
            message: None,
        }
    }

    pub(super) fn join(&mut self, position: Position) {
        if position.not_before.is_zero() {
            self.has_new_pods = true;
        } else {
            self.delayed.insert((position.not_before, Arc::clone(&position.uid)));
        }
        self.pods.insert(position);
    }

    pub(super) fn leave(&mut self, position: &Position) {
        self.delayed.remove(&(position.not_before, Arc::clone(&position.uid)));
        self.pods.remove(position);
    }

    /// The pods that need not wait after a failure, oldest first.
    pub(super) fn ready(&self, now: Duration) -> impl Iterator<Item = &Position> {
        self.pods.iter().filter(move |position| position.not_before <= now)
    }

    /// The pod for which nodes are asked.
    pub(super) fn first(&self, now: Duration) -> Option<&Arc<str>> {
        self.ready(now).next().map(|position| &position.uid)
    }

    /// Pods have come, or something else has changed that does not wait.
    pub(super) fn touch(&mut self) {
        self.has_new_pods = true;
    }

    /// When the queue is to be evaluated.
    pub(super) fn due(&self) -> Duration {
        let last = self.last.unwrap_or_default();
        let due = match self.last {
            _ if self.has_new_pods => Duration::ZERO,
            Some(last) if self.is_outdated => last + PERIOD,
            _ => self.latest,
        };
        // Pods that may be placed after the last evaluation.
        let released = self.delayed.iter().map(|(at, _)| *at).find(|at| *at > last).unwrap_or(Duration::MAX);
        let first = self.delayed.first().map_or(Duration::ZERO, |(at, _)| *at);
        let ready = if self.delayed.len() < self.pods.len() { Duration::ZERO } else { first };
        due.min(released).max(ready).max(self.not_before)
    }

    /// Whether a node did not answer at the last evaluation.
    pub(super) fn is_silent(&self) -> bool {
        self.silences > 0
    }

    /// When a node that did not answer is asked again.
    pub(super) fn silence_period(&self) -> Duration {
        PERIOD.saturating_mul(2u32.saturating_pow(self.silences)).min(LONGEST_SILENCE)
    }

    /// The queue was evaluated, and a node that may help did not answer, or all did.
    pub(super) fn count_silence(&mut self, is_silent: bool) {
        self.silences = if is_silent { self.silences.saturating_add(1) } else { 0 };
    }

    /// The queue was evaluated. That is repeated after `period`, if nothing happens before.
    pub(super) fn evaluated(&mut self, now: Duration, period: Duration) {
        self.has_new_pods = false;
        self.is_outdated = false;
        self.last = Some(now);
        self.latest = now + period;
    }
}

// === impl Position ===

impl Position {
    pub(super) fn of(pod: &Pod, uid: &Arc<str>, not_before: Duration) -> Self {
        let created = pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
        Self { created, uid: Arc::clone(uid), not_before }
    }
}
