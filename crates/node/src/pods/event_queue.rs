//! The queue of events on their way to the API server. Events are for people: they must never slow down the pods, so they are
//! written at a kubelet's rate, warnings first, and some are dropped when there are too many.

use std::{future::Future, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::{sync::mpsc, time::Instant};
use tracing::debug;
use vk_kube::{Recorder, event::Severity};

/// How many events of one severity may wait.
const LENGTH: usize = 1024;

/// The size of a burst, in seconds of the usual rate.
const BURST: u32 = 2;

type QueuedEvent = (ObjectReference, Severity, String, String);

/// How many events a pod may have at once, as in client-go, and when it may have another.
const PER_POD: u32 = 25;
const ANOTHER: Duration = Duration::from_mins(5);

/// How many events of one pod may still be recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventBudget {
    used: u32,
    since: Duration,
}

/// The sending end.
pub(super) struct EventQueue {
    warnings: mpsc::Sender<QueuedEvent>,
    others: mpsc::Sender<QueuedEvent>,
}

/// The receiving end.
pub(super) struct EventWriter {
    warnings: mpsc::Receiver<QueuedEvent>,
    others: mpsc::Receiver<QueuedEvent>,
}

/// A queue, by its two ends.
pub(super) fn event_queue() -> (EventQueue, EventWriter) {
    let (warnings_in, warnings) = mpsc::channel(LENGTH);
    let (others_in, others) = mpsc::channel(LENGTH);
    (EventQueue { warnings: warnings_in, others: others_in }, EventWriter { warnings, others })
}

// === impl EventBudget ===

impl EventBudget {
    /// Takes one event from the budget. Returns whether there was one.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        let earned = now.saturating_sub(self.since).as_secs() / ANOTHER.as_secs();
        if earned > 0 {
            self.used = self.used.saturating_sub(u32::try_from(earned).unwrap_or(u32::MAX));
            self.since = now;
        }
        let may = self.used < PER_POD;
        self.used += u32::from(may);
        may
    }
}

// === impl EventQueue ===

impl EventQueue {
    pub(super) fn push(&self, about: ObjectReference, severity: Severity, reason: String, message: String) {
        let queue = match severity {
            Severity::Warning => &self.warnings,
            Severity::Normal => &self.others,
        };
        if let Err(full) = queue.try_send((about, severity, reason, message)) {
            let (about, _, reason, _) = full.into_inner();
            debug!(pod = about.name, reason, "too many events at once: dropped");
        }
    }
}

// === impl EventWriter ===

impl EventWriter {
    /// Writes events until the sender is dropped: at most `per_second`, after a burst.
    pub(super) fn write(mut self, recorder: Recorder, per_second: u32) -> impl Future<Output = ()> {
        let per_second = per_second.max(1);
        let pace = Duration::from_secs(1) / per_second;
        async move {
            // When the next event would be due, had all before been written at the usual rate.
            let burst = pace * per_second * BURST;
            let earlier = |now: Instant| now.checked_sub(burst).unwrap_or(now);
            let mut due = earlier(Instant::now());
            loop {
                let (about, severity, reason, message) = tokio::select! {
                    biased;
                    Some(event) = self.warnings.recv() => event,
                    Some(event) = self.others.recv() => event,
                    else => return,
                };
                due = due.max(earlier(Instant::now())) + pace;
                tokio::time::sleep_until(due).await;
                recorder.publish(&about, severity, &reason, &message).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_a_burst_of_events_and_then_one_in_five_minutes() {
        let mut budget = EventBudget::default();
        let begin = Duration::from_hours(1);
        let recorded = (0..1000).filter(|_| budget.take(begin)).count();
        assert_eq!(recorded, PER_POD as usize);
        assert!(!budget.take(begin + ANOTHER / 2));
        assert!(budget.take(begin + ANOTHER));
        assert!(!budget.take(begin + ANOTHER));
    }
}
