//! Counts the bytes of a session, and knows when the last one moved.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use crate::limits::{End, Outcome};

/// What has moved so far.
#[derive(Debug)]
pub(crate) struct Meter {
    began: Instant,
    received: AtomicU64,
    sent: AtomicU64,
    /// Milliseconds from `began` to the last byte.
    last: AtomicU64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// Bytes went from the client to the pod.
    pub(crate) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.touch();
    }

    /// Bytes went from the pod to the client.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.touch();
    }

    fn touch(&self) {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(elapsed, Ordering::Relaxed);
    }

    /// Resolves when nothing moved for so long.
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

    /// The account of a session that ended so.
    pub(crate) fn outcome(&self, end: End) -> Outcome {
        let (received, sent) = (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        Outcome { end, received, sent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idleness_counts_from_the_last_byte() {
        let meter = Meter::new();
        let began = Instant::now();
        let moving = async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                meter.sent(1);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = meter.idle(Duration::from_secs(10)) => {}
            () = moving => {}
        }
        assert_eq!(began.elapsed().as_secs(), 37);
        assert_eq!(meter.outcome(End::Idle), Outcome { end: End::Idle, received: 0, sent: 3 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_beyond_all_time_is_no_limit() {
        let waiting = tokio::time::timeout(Duration::from_hours(24 * 365), async {
            Meter::new().idle(Duration::MAX).await;
        });
        waiting.await.unwrap_err();
    }
}
