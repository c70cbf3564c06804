//! The line of events on their way to the API server. Events are for people: they must never slow down what they tell of, so
//! they are written at a kubelet's pace, warnings first, and in a flood some are lost.

use std::{future::Future, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::{sync::mpsc, time::Instant};
use tracing::debug;
use vk_kube::{Recorder, event::Severity};

/// How many events of one severity may wait.
const LENGTH: usize = 1024;

/// How many events may be written at once, counted in seconds of the usual pace.
const BURST: u32 = 2;

type Waiting = (ObjectReference, Severity, String, String);

/// How many events a pod may have at once, as in client-go, and when it may have another.
const PER_POD: u32 = 25;
const ANOTHER: Duration = Duration::from_mins(5);

/// How many events may still be told of one pod.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowance {
    told: u32,
    since: Duration,
}

/// Where events are put.
pub(super) struct Events {
    warnings: mpsc::Sender<Waiting>,
    others: mpsc::Sender<Waiting>,
}

/// Where they come out.
pub(super) struct Line {
    warnings: mpsc::Receiver<Waiting>,
    others: mpsc::Receiver<Waiting>,
}

/// A line with its two ends.
pub(super) fn line() -> (Events, Line) {
    let (warnings_in, warnings) = mpsc::channel(LENGTH);
    let (others_in, others) = mpsc::channel(LENGTH);
    (Events { warnings: warnings_in, others: others_in }, Line { warnings, others })
}

// === impl Allowance ===

impl Allowance {
    /// Whether another event may be told now.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        let earned = now.saturating_sub(self.since).as_secs() / ANOTHER.as_secs();
        if earned > 0 {
            self.told = self.told.saturating_sub(u32::try_from(earned).unwrap_or(u32::MAX));
            self.since = now;
        }
        let may = self.told < PER_POD;
        self.told += u32::from(may);
        may
    }
}

// === impl Events ===

impl Events {
    pub(super) fn push(&self, about: ObjectReference, severity: Severity, reason: String, message: String) {
        let line = match severity {
            Severity::Warning => &self.warnings,
            Severity::Normal => &self.others,
        };
        if let Err(full) = line.try_send((about, severity, reason, message)) {
            let (about, _, reason, _) = full.into_inner();
            debug!(pod = about.name, reason, "too many events at once: one is dropped");
        }
    }
}

// === impl Line ===

impl Line {
    /// Writes events until the other end is gone: at most so many a second, after a burst.
    pub(super) fn write(mut self, recorder: Recorder, per_second: u32) -> impl Future<Output = ()> {
        let per_second = per_second.max(1);
        let pace = Duration::from_secs(1) / per_second;
        async move {
            // The time at which the next event would be due if all before had been written at the usual pace.
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
        let mut allowance = Allowance::default();
        let begin = Duration::from_hours(1);
        let told = (0..1000).filter(|_| allowance.take(begin)).count();
        assert_eq!(told, PER_POD as usize);
        assert!(!allowance.take(begin + ANOTHER / 2));
        assert!(allowance.take(begin + ANOTHER));
        assert!(!allowance.take(begin + ANOTHER));
    }
}
