//! Values that many objects share: each is stored once, with the number of its users.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    hash::Hash,
    sync::Arc,
};

/// How many strings may be added before unused ones are dropped.
const UNUSED_STRINGS: usize = 1024;

/// Counted values with small ids. The id of a value that nobody uses any more is given to another value.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    ids: HashMap<Arc<T>, u32>,
    entries: Vec<Option<Entry<T>>>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    value: Arc<T>,
    users: usize,
}

/// Strings that are stored once as long as somebody uses them.
#[derive(Debug, Default)]
pub(crate) struct StringPool {
    strings: HashSet<Arc<str>>,
    /// The number of strings at which unused ones are dropped.
    limit: usize,
}

// === impl Interner ===

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { ids: HashMap::new(), entries: Vec::new(), vacant: Vec::new() }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The id of a value, which has one user more from now on.
    pub(crate) fn acquire(&mut self, value: T) -> u32 {
        if let Some(&id) = self.ids.get(&value) {
            if let Some(entry) = &mut self.entries[id as usize] {
                entry.users += 1;
            }
            return id;
        }
        let value = Arc::new(value);
        let entry = Some(Entry { value: Arc::clone(&value), users: 1 });
        let id = if let Some(id) = self.vacant.pop() {
            self.entries[id as usize] = entry;
            id
        } else {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1).expect("invariant: fewer than 2^32 values")
        };
        self.ids.insert(value, id);
        id
    }

    /// The value has one user less. Returns whether that was the last one.
    pub(crate) fn release(&mut self, id: u32) -> bool {
        let Some(entry) = &self.entries[id as usize] else { return false };
        let users = entry.users - 1;
        self.set_users(id, users);
        users == 0
    }

    /// The value with this id.
    pub(crate) fn get(&self, id: u32) -> &T {
        let entry = self.entries[id as usize].as_ref();
        &entry.expect("invariant: an id is used only between acquire and release").value
    }

    /// The values in use.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten().map(|entry| &*entry.value)
    }

    /// A number larger than all ids in use.
    pub(crate) fn bound(&self) -> usize {
        self.entries.len()
    }

    /// How many different values are in use.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// How many users each value has.
    pub(crate) fn users(&self) -> impl Iterator<Item = (u32, usize)> {
        let ids = 0..;
        ids.zip(&self.entries).filter_map(|(id, entry)| Some((id, entry.as_ref()?.users)))
    }

    /// Sets the number of users of a value, which is dropped if there are none.
    pub(crate) fn set_users(&mut self, id: u32, users: usize) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        entry.users = users;
        if users == 0 {
            self.ids.remove(&entry.value);
            self.entries[id as usize] = None;
            self.vacant.push(id);
        }
    }
}

// === impl StringPool ===

impl StringPool {
    /// The shared copy of a text.
    pub(crate) fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(string) = self.strings.get(text) {
            return Arc::clone(string);
        }
        if self.strings.len() >= self.limit {
            self.strings.retain(|string| Arc::strong_count(string) > 1);
            self.limit = self.strings.len() * 2 + UNUSED_STRINGS;
        }
        let string: Arc<str> = text.into();
        self.strings.insert(Arc::clone(&string));
        string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_one_id_until_the_last_user_is_gone() {
        let mut interner = Interner::default();
        let first = interner.acquire("a".to_owned());
        assert_eq!(interner.acquire("a".to_owned()), first);
        let second = interner.acquire("b".to_owned());
        assert_ne!(first, second);
        assert!(!interner.release(first));
        assert!(interner.release(first));
        assert_eq!((interner.len(), interner.bound()), (1, 2));
        assert_eq!(interner.acquire("c".to_owned()), first, "the id is used again");
        assert_eq!(interner.get(second), "b");
    }

    #[test]
    fn strings_that_nobody_uses_are_dropped() {
        let mut pool = StringPool::default();
        let kept = pool.get("kept");
        for number in 0..10_000 {
            pool.get(&format!("node-{number}"));
        }
        assert!(pool.strings.len() <= 2 * UNUSED_STRINGS, "{}", pool.strings.len());
        assert!(Arc::ptr_eq(&kept, &pool.get("kept")));
    }
}
