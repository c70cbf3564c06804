//! The objects of one watch, kept in memory.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    time::Duration,
};

use tokio::time::Instant;
use vk_kube::{Error, Kind};

/// Errors that are closer than this belong to one period, and a period that lasts this long means that the watch is broken.
const ERROR_PERIOD: Duration = Duration::from_secs(30);
/// The period is over after this long without an error: a watch is restarted after ten seconds at most.
const RECOVERY: Duration = Duration::from_secs(15);

/// Namespace (empty for cluster-scoped objects) and name.
pub(crate) type ObjectKey = (String, String);

/// The objects of one watch.
#[derive(Debug)]
pub(super) struct Mirror<V, K = ObjectKey> {
    objects: HashMap<K, V>,
    /// The keys seen by a list in progress.
    listing: Option<HashSet<K>>,
    sync_state: SyncState,
    /// The first and the last error of the current period.
    error_period: Option<(Instant, Instant)>,
}

/// Whether a mirror is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SyncState {
    /// Not listed yet.
    #[default]
    NotListed,
    /// Not listed yet, because of this error.
    Failed(Error),
    /// Complete.
    Synced,
}

// === impl Mirror ===

impl<V, K> Default for Mirror<V, K> {
    fn default() -> Self {
        Self { objects: HashMap::new(), listing: None, sync_state: SyncState::default(), error_period: None }
    }
}

impl<V, K: Clone + Eq + Hash> Mirror<V, K> {
    pub(super) fn begin_listing(&mut self) {
        self.listing = Some(HashSet::new());
    }

    /// Returns the previous value.
    pub(super) fn upsert(&mut self, key: K, value: V) -> Option<V> {
        self.error_period = None;
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        self.objects.insert(key, value)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.error_period = None;
        if let Some(listing) = &mut self.listing {
            listing.remove(key);
        }
        self.objects.remove(key)
    }

    /// Ends a list. Returns the objects that were not part of it and are gone.
    pub(super) fn finish_listing(&mut self) -> Vec<(K, V)> {
        (self.sync_state, self.error_period) = (SyncState::Synced, None);
        let Some(listing) = self.listing.take() else { return Vec::new() };
        let gone: Vec<K> = self.objects.keys().filter(|key| !listing.contains(*key)).cloned().collect();
        gone.iter().filter_map(|key| self.objects.remove_entry(key)).collect()
    }

    /// Records an error of the watch. A complete mirror stays complete, only outdated.
    pub(super) fn record_error(&mut self, error: Error) {
        let now = Instant::now();
        let period = self.error_period.filter(|(_, last)| now.duration_since(*last) < ERROR_PERIOD);
        self.error_period = Some((period.map_or(now, |(first, _)| first), now));
        if self.sync_state != SyncState::Synced {
            self.sync_state = SyncState::Failed(error);
        }
    }

    /// Whether the watch works. A single error does not count, only errors over some time. A working watch is silent while nothing
    /// changes, so a period of errors ends when no more errors follow.
    pub(super) fn is_watch_healthy(&self) -> bool {
        let goes_on = |(first, last): (Instant, Instant)| {
            last.duration_since(first) >= ERROR_PERIOD && last.elapsed() < RECOVERY
        };
        !self.error_period.is_some_and(goes_on)
    }

    pub(super) fn sync_state(&self) -> &SyncState {
        &self.sync_state
    }

    pub(super) fn is_synced(&self) -> bool {
        self.sync_state == SyncState::Synced
    }

    /// Whether the objects cannot be read.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(&self.sync_state, SyncState::Failed(error) if error.kind == Kind::Forbidden)
    }

    pub(super) fn is_listing(&self) -> bool {
        self.listing.is_some()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.objects.get(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.objects.values()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.objects.iter()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.objects.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("default".to_owned(), name.to_owned())
    }

    #[test]
    fn objects_missing_from_a_new_list_are_removed() {
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
        assert_eq!(mirror.remove(&key("c")), Some(4), "during the list");
        assert_eq!(mirror.get(&key("a")), Some(&1), "the list may still contain it");
        assert_eq!(mirror.finish_listing(), [(key("a"), 1)]);
        assert_eq!(mirror.values().collect::<Vec<_>>(), [&3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_unhealthy_only_after_a_period_of_errors() {
        let mut mirror: Mirror<u8> = Mirror::default();
        let error = || Error::new(vk_kube::Kind::Unreachable, "no");
        mirror.finish_listing();
        mirror.record_error(error());
        assert!(mirror.is_watch_healthy());
        for _ in 0..4 {
            tokio::time::advance(Duration::from_secs(10)).await;
            mirror.record_error(error());
        }
        assert!(!mirror.is_watch_healthy(), "errors for forty seconds");
        tokio::time::advance(RECOVERY).await;
        assert!(mirror.is_watch_healthy(), "no more errors");
        mirror.record_error(error());
        assert!(!mirror.is_watch_healthy(), "the errors continue");
        mirror.upsert(key("a"), 1);
        assert!(mirror.is_watch_healthy(), "an event arrived");
        mirror.record_error(error());
        assert!(mirror.is_watch_healthy(), "a new period begins");
    }

    #[test]
    fn an_error_matters_only_before_the_first_list() {
        let mut mirror: Mirror<u8> = Mirror::default();
        let error = Error::new(vk_kube::Kind::Forbidden, "no");
        mirror.record_error(error.clone());
        assert_eq!(*mirror.sync_state(), SyncState::Failed(error.clone()));
        mirror.finish_listing();
        mirror.record_error(error);
        assert_eq!(*mirror.sync_state(), SyncState::Synced);
    }
}
