//! Answers that are remembered for a while, and never more than so many.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// What an answer is filed under: a digest, so that no token stays in memory for it.
pub(super) type Key = [u8; 32];

/// Remembers answers. The oldest goes when there are too many.
pub(super) struct Cache<V> {
    limit: usize,
    kept: Mutex<Kept<V>>,
}

struct Kept<V> {
    answers: HashMap<Key, (Instant, V)>,
    /// In the order in which they came; a key that came twice stands here twice.
    order: VecDeque<(Instant, Key)>,
}

// === impl Cache ===

impl<V: Clone> Cache<V> {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, kept: Mutex::new(Kept { answers: HashMap::new(), order: VecDeque::new() }) }
    }

    /// The answer, if it is not too old.
    pub(super) fn get(&self, key: &Key) -> Option<V> {
        let kept = self.kept.lock();
        kept.answers.get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, answer)| answer.clone())
    }

    /// Remembers an answer for so long.
    pub(super) fn put(&self, key: Key, answer: V, life: Duration) {
        let until = Instant::now() + life;
        let mut kept = self.kept.lock();
        kept.answers.insert(key, (until, answer));
        kept.order.push_back((until, key));
        while kept.order.len() > self.limit {
            let Some((until, oldest)) = kept.order.pop_front() else { break };
            // Unless it came again since.
            if kept.answers.get(&oldest).is_some_and(|(known, _)| *known == until) {
                kept.answers.remove(&oldest);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.kept.lock().answers.len()
    }
}

/// The key of some bytes.
pub(super) fn key(bytes: &[u8]) -> Key {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut key = Key::default();
    key.copy_from_slice(digest.as_ref());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_forgotten_when_its_time_is_over() {
        let cache = Cache::new(10);
        cache.put(key(b"a"), 1, Duration::from_secs(10));
        assert_eq!(cache.get(&key(b"a")), Some(1));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(cache.get(&key(b"a")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answer_goes_when_there_are_too_many_and_one_that_came_again_stays() {
        let cache = Cache::new(3);
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
