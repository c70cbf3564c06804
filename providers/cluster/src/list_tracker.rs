//! Finds the objects that disappear between two lists of a watch.

use std::{collections::HashSet, hash::Hash};

/// The keys that a watch has reported, to find those that are missing from a new list.
#[derive(Debug)]
pub(crate) struct ListTracker<K> {
    known: HashSet<K>,
    listing: Option<HashSet<K>>,
}

// === impl ListTracker ===

impl<K> Default for ListTracker<K> {
    fn default() -> Self {
        Self { known: HashSet::new(), listing: None }
    }
}

impl<K: Clone + Eq + Hash> ListTracker<K> {
    pub(crate) fn begin_list(&mut self) {
        self.listing = Some(HashSet::new());
    }

    pub(crate) fn insert(&mut self, key: K) {
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        // Recorded even if the list is interrupted: the next list then shows what became of it.
        self.known.insert(key);
    }

    /// Returns whether the key was known.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        if let Some(listing) = &mut self.listing {
            listing.remove(key);
        }
        self.known.remove(key)
    }

    /// Returns the keys that were not in the list.
    pub(crate) fn finish_list(&mut self) -> Vec<K> {
        let listed = self.listing.take().unwrap_or_default();
        let gone = self.known.difference(&listed).cloned().collect();
        self.known = listed;
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_missing_from_a_new_list_are_returned() {
        let mut tracker = ListTracker::default();
        tracker.begin_list();
        tracker.insert("a");
        tracker.insert("b");
        assert!(tracker.finish_list().is_empty());
        assert!(tracker.remove(&"b") && !tracker.remove(&"b"));
        tracker.insert("c");
        // A list that is interrupted.
        tracker.begin_list();
        tracker.insert("d");
        tracker.begin_list();
        tracker.insert("c");
        let mut gone = tracker.finish_list();
        gone.sort_unstable();
        assert_eq!(gone, ["a", "d"]);
    }
}
