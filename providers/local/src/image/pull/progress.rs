//! The progress of a pull. A registry that sends just enough to keep its connections open is given up.

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::image::{Error, Kind, PullLimits, Result};

/// The progress of all downloads of a pull.
#[derive(Debug)]
pub(super) struct Progress {
    limits: PullLimits,
    state: Mutex<Window>,
}

/// The time in which the next bytes must arrive.
#[derive(Debug)]
struct Window {
    end: Instant,
    received: u64,
    downloads: usize,
    expired: bool,
}

/// A download in progress. While there is none, time does not count: the pull waits for others, or unpacks.
pub(super) struct Download<'a>(&'a Progress);

// === impl Progress ===

impl Progress {
    pub(super) fn new(limits: PullLimits) -> Self {
        let state = Window { end: Instant::now(), received: 0, downloads: 0, expired: false };
        Self { limits, state: Mutex::new(state) }
    }

    /// Begins a download.
    pub(super) fn begin(&self) -> Download<'_> {
        let mut window = self.state.lock();
        if window.downloads == 0 {
            window.restart(&self.limits);
        }
        window.downloads += 1;
        Download(self)
    }

    /// Whether the pull was given up.
    pub(super) fn has_expired(&self) -> bool {
        self.state.lock().expired
    }
}

impl Window {
    fn restart(&mut self, limits: &PullLimits) {
        (self.end, self.received) = (Instant::now() + limits.progress_time, 0);
    }
}

// === impl Download ===

impl Download<'_> {
    /// Waits for the next part of the download, as long as the pull makes progress.
    pub(super) async fn wait<T>(&self, part: impl Future<Output = T>) -> Result<T> {
        tokio::pin!(part);
        loop {
            let end = self.0.state.lock().end;
            if let Ok(part) = timeout_at(end, &mut part).await {
                return Ok(part);
            }
            let mut window = self.0.state.lock();
            // Another download of the pull may have made progress.
            if window.end <= end {
                window.expired = true;
                let PullLimits { progress_time, progress_bytes, .. } = &self.0.limits;
                return Err(Error::new(
                    Kind::Unavailable,
                    format!(
                        "the registry is too slow: less than {progress_bytes} bytes arrived within {progress_time:?}"
                    ),
                ));
            }
        }
    }

    /// Counts received bytes.
    pub(super) fn received(&self, bytes: usize) {
        let mut window = self.0.state.lock();
        window.received += bytes as u64;
        if window.received >= self.0.limits.progress_bytes {
            window.restart(&self.0.limits);
        }
    }
}

impl Drop for Download<'_> {
    fn drop(&mut self) {
        self.0.state.lock().downloads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> PullLimits {
        PullLimits { progress_time: SECOND * 10, progress_bytes: 100, ..PullLimits::default() }
    }

    async fn receive(download: &Download<'_>, seconds: u32, bytes: usize) -> Result<()> {
        download.wait(tokio::time::sleep(SECOND * seconds)).await?;
        download.received(bytes);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_given_up_and_a_slow_download_is_not() {
        let progress = Progress::new(limits());
        let download = progress.begin();
        for _ in 0..50 {
            receive(&download, 9, 100).await.unwrap();
        }
        for _ in 0..9 {
            receive(&download, 1, 1).await.unwrap();
        }
        let error = receive(&download, 2, 1).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.message().contains("less than 100 bytes arrived within 10s"), "{error}");
        assert!(progress.has_expired());
    }

    #[tokio::test(start_paused = true)]
    async fn the_progress_of_one_download_counts_for_all_and_waiting_does_not_count() {
        let progress = Progress::new(limits());
        {
            let (slow, quick) = (progress.begin(), progress.begin());
            let quick = async {
                for _ in 0..10 {
                    receive(&quick, 5, 100).await.unwrap();
                }
            };
            let (slow, ()) = tokio::join!(receive(&slow, 55, 1), quick);
            slow.unwrap();
        }
        tokio::time::advance(SECOND * 3600).await;
        receive(&progress.begin(), 5, 1).await.unwrap();
    }
}
