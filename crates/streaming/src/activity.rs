//! Counts the bytes of a session and detects idleness.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use crate::limits::{SessionEnd, SessionOutcome};

/// The traffic of a session.
#[derive(Debug)]
pub(crate) struct ActivityTracker {
    began: Instant,
    received: AtomicU64,
    sent: AtomicU64,
    /// Milliseconds from `began` to the last byte.
    last: AtomicU64,
}

impl ActivityTracker {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// Counts bytes from the client to the pod.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.record();
    }

    /// Counts bytes from the pod to the client.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.record();
    }

    fn record(&self) {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(elapsed, Ordering::Relaxed);
    }

    /// Resolves when no byte has moved for this time.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            match self.began.checked_add(last).and_then(|moved| moved.checked_add(limit)) {
                Some(due) if Instant::now() >= due => return,
                Some(due) => sleep_until(due).await,
                None => return std::future::pending().await,
            }
        }
    }

    /// The outcome of a session with this end.
    pub(crate) fn outcome(&self, end: SessionEnd) -> SessionOutcome {
        let (received, sent) = (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        SessionOutcome { end, received, sent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idleness_counts_from_the_last_byte() {
        let activity = ActivityTracker::new();
        let began = Instant::now();
        let moving = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                activity.sent(1);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = activity.idle(Duration::from_secs(10)) => {}
            () = moving => {}
        }
        assert_eq!(began.elapsed().as_secs(), 37);
        assert_eq!(
            activity.outcome(SessionEnd::Idle),
            SessionOutcome { end: SessionEnd::Idle, received: 0, sent: 3 }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_maximum_limit_never_expires() {
        let waiting = tokio::time::timeout(Duration::from_hours(24 * 365), async {
            ActivityTracker::new().idle(Duration::MAX).await;
        });
        waiting.await.unwrap_err();
    }
}
