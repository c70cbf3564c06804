//! What a watch has told, kept.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;
use vk_kube::Error;

/// Troubles that come no further apart are one, and it counts when it lasts as long.
const ROW: Duration = Duration::from_secs(30);
/// It is over when there was no more of it for so long: a watch is begun again after ten seconds at the latest.
const OVER: Duration = Duration::from_secs(15);

/// Where an object is: its namespace, if it has one, and its name.
pub(crate) type Key = (String, String);

/// The objects of one watch, as they were told last.
#[derive(Debug)]
pub(super) struct Mirror<V> {
    objects: HashMap<Key, V>,
    /// What a listing that is not over has told.
    listing: Option<HashSet<Key>>,
    sync_state: SyncState,
    /// The first error_period of a row and the last one.
    error_period: Option<(Instant, Instant)>,
}

/// How much a mirror shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SyncState {
    /// Nothing was told yet.
    #[default]
    NotListed,
    /// Nothing was told yet, and the server said why.
    Failed(Error),
    /// All that there is.
    Synced,
}

// === impl Mirror ===

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Self { objects: HashMap::new(), listing: None, sync_state: SyncState::default(), error_period: None }
    }
}

impl<V> Mirror<V> {
    pub(super) fn begin_listing(&mut self) {
        self.listing = Some(HashSet::new());
    }

    /// What it was before, if it was there.
    pub(super) fn upsert(&mut self, key: Key, value: V) -> Option<V> {
        self.error_period = None;
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        self.objects.insert(key, value)
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<V> {
        self.error_period = None;
        if let Some(listing) = &mut self.listing {
            listing.remove(key);
        }
        self.objects.remove(key)
    }

    /// The listing is over: what it did not notify of is gone, and is answered.
    pub(super) fn finish_listing(&mut self) -> Vec<V> {
        (self.sync_state, self.error_period) = (SyncState::Synced, None);
        let Some(listing) = self.listing.take() else { return Vec::new() };
        let gone: Vec<Key> = self.objects.keys().filter(|key| !listing.contains(*key)).cloned().collect();
        gone.iter().filter_map(|key| self.objects.remove(key)).collect()
    }

    /// The server cannot be asked. What was whole stays: it is old, and that shows elsewhere.
    pub(super) fn record_error(&mut self, error: Error) {
        let now = Instant::now();
        let row = self.error_period.filter(|(_, last)| now.duration_since(*last) < ROW);
        self.error_period = Some((row.map_or(now, |(first, _)| first), now));
        if self.sync_state != SyncState::Synced {
            self.sync_state = SyncState::Failed(error);
        }
    }

    /// Whether changes are heard of. One error_period is none; only what goes on for a while is. A watch that goes on says nothing when
    /// nothing changes, so the end of error_period is that there is no more of it.
    pub(super) fn is_watch_healthy(&self) -> bool {
        let goes_on =
            |(first, last): (Instant, Instant)| last.duration_since(first) >= ROW && last.elapsed() < OVER;
        !self.error_period.is_some_and(goes_on)
    }

    pub(super) fn sync_state(&self) -> &SyncState {
        &self.sync_state
    }

    pub(super) fn get(&self, key: &Key) -> Option<&V> {
        self.objects.get(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.objects.values()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.objects.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("default".to_owned(), name.to_owned())
    }

    #[test]
    fn what_a_listing_does_not_tell_of_is_gone_and_said_to_be() {
        let mut mirror = Mirror::default();
        assert_eq!(*mirror.sync_state(), SyncState::NotListed);
        mirror.begin_listing();
        mirror.upsert(key("a"), 1);
        mirror.upsert(key("b"), 2);
        assert!(mirror.finish_listing().is_empty());
        assert_eq!(*mirror.sync_state(), SyncState::Synced);
        mirror.begin_listing();
        assert_eq!(mirror.upsert(key("b"), 3), Some(2));
        mirror.upsert(key("c"), 4);
        assert_eq!(mirror.remove(&key("c")), Some(4), "between the parts of the listing");
        assert_eq!(mirror.get(&key("a")), Some(&1), "it may be told of yet");
        assert_eq!(mirror.finish_listing(), [1]);
        assert_eq!(mirror.values().collect::<Vec<_>>(), [&3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_for_long_is_not_heard_and_one_that_failed_once_is() {
        let mut mirror: Mirror<u8> = Mirror::default();
        let error = || Error::new(vk_kube::Kind::Unreachable, "no");
        mirror.finish_listing();
        mirror.record_error(error());
        assert!(mirror.is_watch_healthy());
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(10)).await;
            mirror.record_error(error());
        }
        assert!(!mirror.is_watch_healthy(), "forty seconds");
        tokio::time::advance(OVER).await;
        assert!(mirror.is_watch_healthy(), "there was no more of it");
        mirror.record_error(error());
        assert!(!mirror.is_watch_healthy(), "it goes on");
        mirror.upsert(key("a"), 1);
        assert!(mirror.is_watch_healthy(), "something is told");
        mirror.record_error(error());
        assert!(mirror.is_watch_healthy(), "another row begins");
    }

    #[test]
    fn trouble_counts_until_everything_was_read_once() {
        let mut mirror: Mirror<u8> = Mirror::default();
        let error = Error::new(vk_kube::Kind::Forbidden, "no");
        mirror.record_error(error.clone());
        assert_eq!(*mirror.sync_state(), SyncState::Failed(error.clone()));
        mirror.finish_listing();
        mirror.record_error(error);
        assert_eq!(*mirror.sync_state(), SyncState::Synced);
    }
}
