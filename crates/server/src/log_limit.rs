//! Limits log lines that callers can cause without rights.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Log lines per period.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_mins(1);

/// Allows some log lines per minute and counts the others.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Usage>);

#[derive(Debug, Default)]
struct Usage {
    /// The begin of the current period.
    since: Option<Instant>,
    written: u32,
    omitted: u64,
}

// === impl LogLimit ===

impl LogLimit {
    /// Whether a line may be written now; then with the number of those omitted since the last one.
    pub(crate) fn allow(&self) -> Option<u64> {
        let now = Instant::now();
        let mut usage = self.0.lock();
        if usage.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            (usage.since, usage.written) = (Some(now), 0);
        }
        if usage.written == LINES {
            usage.omitted += 1;
            return None;
        }
        usage.written += 1;
        Some(std::mem::take(&mut usage.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_lines_a_minute_are_written_and_the_rest_is_counted() {
        let limit = LogLimit::default();
        let written = |tries: usize| (0..tries).filter_map(|_| limit.allow()).collect::<Vec<_>>();
        assert_eq!(written(1000), [0; 10]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(written(2), [990, 0]);
    }
}
