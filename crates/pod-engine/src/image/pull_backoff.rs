//! Back-off of failed pulls.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_mins(5);

/// Back-off by pod UID and image.
#[derive(Debug, Default)]
pub(super) struct PullBackoffs(HashMap<(String, String), Entry>);

#[derive(Debug)]
struct Entry {
    delay: Duration,
    failed: Instant,
    /// Reason and message of the last pull; removed when the next one begins.
    why: Option<String>,
}

impl PullBackoffs {
    /// The rest of the back-off and the last failure, if the image must not be pulled yet.
    pub(super) fn remaining(&self, pod: &str, image: &str, now: Instant) -> Option<(Duration, Option<&str>)> {
        let entry = self.0.get(&(pod.to_owned(), image.to_owned()))?;
        let left = entry.delay.checked_sub(now.saturating_duration_since(entry.failed))?;
        (!left.is_zero()).then_some((left, entry.why.as_deref()))
    }

    /// Records the begin of a pull.
    pub(super) fn begin(&mut self, pod: &str, image: &str) {
        if let Some(entry) = self.0.get_mut(&(pod.to_owned(), image.to_owned())) {
            entry.why = None;
        }
    }

    /// Records a failed pull: the back-off doubles, unless the last failure is long ago.
    pub(super) fn record_failure(&mut self, pod: &str, image: &str, why: String, now: Instant) {
        self.prune(now);
        let entry = self.0.entry((pod.to_owned(), image.to_owned()));
        let entry = entry.and_modify(|entry| entry.delay = (entry.delay * 2).min(MAX)).or_insert(Entry {
            delay: FIRST,
            failed: now,
            why: None,
        });
        (entry.failed, entry.why) = (now, Some(why));
    }

    /// Removes old entries.
    pub(super) fn prune(&mut self, now: Instant) {
        self.0.retain(|_, entry| now.saturating_duration_since(entry.failed) <= 2 * MAX);
    }

    /// Removes the entries of a pod.
    pub(super) fn forget(&mut self, pod: &str) {
        self.0.retain(|(uid, _), _| uid != pod);
    }
}
