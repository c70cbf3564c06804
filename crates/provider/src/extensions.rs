//! Objects that the process passes to backends without the contract knowing their types.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    fmt,
    sync::Arc,
};

/// A map of values by type, as in the `http` crate. A backend looks up what it needs; if the process does not provide it, the backend
/// does without or returns an error.
#[derive(Clone, Default)]
pub struct Extensions {
    values: HashMap<TypeId, (&'static str, Arc<dyn Any + Send + Sync>)>,
}

// === impl Extensions ===

impl Extensions {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, replacing one of the same type.
    #[must_use]
    pub fn with<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.values.insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(value)));
        self
    }

    /// Returns the value of this type.
    pub fn get<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        let (_, value) = self.values.get(&TypeId::of::<T>())?;
        value.downcast_ref::<T>().cloned()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.values().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_type_and_replaced_by_a_newer_one() {
        let values = Extensions::new().with(1_u8).with("word").with(2_u8);
        assert_eq!((values.get::<u8>(), values.get::<&str>()), (Some(2), Some("word")));
        assert_eq!((values.get::<u16>(), Extensions::new().get::<u8>()), (None, None));
        assert!(format!("{values:?}").contains("u8"));
    }
}
