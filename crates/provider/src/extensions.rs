//! What a process lends to some of its backends and this contract does not know.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    fmt,
    sync::Arc,
};

/// Things by their type: at most one of each. A backend that needs one asks for it by type, and does without it, or says what it
/// misses, where the process does not lend it. Clones are the same.
#[derive(Clone, Default)]
pub struct Extensions {
    lent: HashMap<TypeId, (&'static str, Arc<dyn Any + Send + Sync>)>,
}

// === impl Extensions ===

impl Extensions {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one thing more, in place of another of its type.
    #[must_use]
    pub fn with<T: Clone + Send + Sync + 'static>(mut self, thing: T) -> Self {
        self.lent.insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(thing)));
        self
    }

    /// The thing of this type, if it was lent.
    pub fn get<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        let (_, thing) = self.lent.get(&TypeId::of::<T>())?;
        thing.downcast_ref::<T>().cloned()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lent.values().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_found_by_its_type_and_the_newer_one_counts() {
        let lent = Extensions::new().with(1_u8).with("word").with(2_u8);
        assert_eq!((lent.get::<u8>(), lent.get::<&str>()), (Some(2), Some("word")));
        assert_eq!((lent.get::<u16>(), Extensions::new().get::<u8>()), (None, None));
        assert!(format!("{lent:?}").contains("u8"));
    }
}
