//! How long to wait before an image is tried again for a pod.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(10);
const LARGEST: Duration = Duration::from_mins(5);

/// Waits by pod and image.
#[derive(Debug, Default)]
pub(super) struct Backoffs(HashMap<(String, String), Entry>);

#[derive(Debug)]
struct Entry {
    delay: Duration,
    failed: Instant,
    /// Reason and message of the last pull; gone when the next one begins.
    why: Option<String>,
}

impl Backoffs {
    /// What is left of the wait, and what went wrong last.
    pub(super) fn waiting(&self, pod: &str, image: &str, now: Instant) -> Option<(Duration, Option<&str>)> {
        let entry = self.0.get(&(pod.to_owned(), image.to_owned()))?;
        let left = entry.delay.checked_sub(now.saturating_duration_since(entry.failed))?;
        (!left.is_zero()).then_some((left, entry.why.as_deref()))
    }

    /// A pull begins.
    pub(super) fn begin(&mut self, pod: &str, image: &str) {
        if let Some(entry) = self.0.get_mut(&(pod.to_owned(), image.to_owned())) {
            entry.why = None;
        }
    }

    /// A pull failed: the next wait is twice as long, unless the last one is long ago.
    pub(super) fn failed(&mut self, pod: &str, image: &str, why: String, now: Instant) {
        self.forget_old(now);
        let entry = self.0.entry((pod.to_owned(), image.to_owned()));
        let entry = entry.and_modify(|entry| entry.delay = (entry.delay * 2).min(LARGEST)).or_insert(Entry {
            delay: FIRST,
            failed: now,
            why: None,
        });
        (entry.failed, entry.why) = (now, Some(why));
    }

    /// Forgets what is long ago.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, entry| now.saturating_duration_since(entry.failed) <= 2 * LARGEST);
    }

    /// Forgets a pod.
    pub(super) fn forget(&mut self, pod: &str) {
        self.0.retain(|(uid, _), _| uid != pod);
    }
}
