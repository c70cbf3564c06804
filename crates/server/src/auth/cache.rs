//! A bounded cache whose entries expire.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The key of an entry: a digest, so that tokens do not stay in memory.
pub(super) type Digest = [u8; 32];

/// Caches values. When it is full, the oldest is evicted.
pub(super) struct TtlCache<V> {
    limit: usize,
    entries: Mutex<Entries<V>>,
}

struct Entries<V> {
    values: HashMap<Digest, (Instant, V)>,
    /// In order of insertion; a key inserted twice is here twice.
    order: VecDeque<(Instant, Digest)>,
}

// === impl TtlCache ===

impl<V: Clone> TtlCache<V> {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: Mutex::new(Entries { values: HashMap::new(), order: VecDeque::new() }) }
    }

    /// The value, unless it expired.
    pub(super) fn get(&self, key: &Digest) -> Option<V> {
        let entries = self.entries.lock();
        entries.values.get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, value)| value.clone())
    }

    /// Caches a value for this time.
    pub(super) fn put(&self, key: Digest, value: V, ttl: Duration) {
        let until = Instant::now() + ttl;
        let mut entries = self.entries.lock();
        entries.values.insert(key, (until, value));
        entries.order.push_back((until, key));
        while entries.order.len() > self.limit {
            let Some((until, oldest)) = entries.order.pop_front() else { break };
            // Unless it was inserted again since.
            if entries.values.get(&oldest).is_some_and(|(known, _)| *known == until) {
                entries.values.remove(&oldest);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.lock().values.len()
    }
}

/// The key for some bytes.
pub(super) fn key(bytes: &[u8]) -> Digest {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut key = Digest::default();
    key.copy_from_slice(digest.as_ref());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_expires() {
        let cache = TtlCache::new(10);
        cache.put(key(b"a"), 1, Duration::from_secs(10));
        assert_eq!(cache.get(&key(b"a")), Some(1));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(cache.get(&key(b"a")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_value_is_evicted_and_a_renewed_one_stays() {
        let cache = TtlCache::new(3);
        for (name, time) in [("a", 0), ("b", 1), ("a", 2), ("c", 3)] {
            cache.put(key(name.as_bytes()), time, Duration::from_secs(100 + time));
        }
        assert_eq!(cache.get(&key(b"a")), Some(2));
        assert_eq!(cache.get(&key(b"b")), Some(1));
        cache.put(key(b"d"), 4, Duration::from_secs(100));
        assert_eq!(cache.get(&key(b"b")), None);
        assert_eq!(cache.get(&key(b"a")), Some(2));
        for count in 0..1000_u32 {
            cache.put(key(&count.to_be_bytes()), 5, Duration::from_secs(100));
        }
        assert!(cache.len() <= 3);
    }
}
