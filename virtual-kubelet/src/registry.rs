//! The available providers by name.

use std::{collections::BTreeMap, fmt, sync::Arc};

use vk_provider::{Factory, config::nearest};

/// The available providers.
#[derive(Clone, Default)]
pub struct Registry {
    factories: BTreeMap<&'static str, Arc<dyn Factory>>,
}

// === impl Registry ===

impl Registry {
    /// A registry without providers.
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry with the built-in providers, one per feature of this crate.
    pub fn with_builtin() -> Self {
        let registry = Self::new();
        #[cfg(feature = "cluster")]
        let registry = registry.with(vk_provider_cluster::ClusterFactory);
        #[cfg(feature = "cri")]
        let registry = registry.with(vk_provider_cri::CriFactory);
        #[cfg(feature = "eci")]
        let registry = registry.with(vk_provider_eci::EciFactory::default());
        #[cfg(feature = "local")]
        let registry = registry.with(vk_provider_local::LocalFactory::default());
        #[cfg(feature = "mock")]
        let registry = registry.with(vk_provider_mock::MockFactory);
        registry
    }

    /// Adds a provider. It replaces an earlier one with the same name.
    #[must_use]
    pub fn with(mut self, factory: impl Factory) -> Self {
        self.factories.insert(factory.name(), Arc::new(factory));
        self
    }

    /// The provider with this name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Factory>> {
        self.factories.get(name).map(Arc::clone)
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<&'static str> {
        self.factories.keys().copied().collect()
    }

    /// All providers, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Factory>> {
        self.factories.values()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}

/// Error message for an unknown provider.
pub(crate) fn unknown_provider_message(name: &str, known: &[&str]) -> String {
    let known_list =
        if known.is_empty() { "none, this build has no providers".into() } else { known.join(", ") };
    match nearest(name, known.iter().copied()) {
        Some(guess) => format!("unknown provider `{name}` (did you mean `{guess}`?); known: {known_list}"),
        None => format!("unknown provider `{name}`; known: {known_list}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones_and_the_nearest() {
        let message = unknown_provider_message("mokc", &["cri", "mock"]);
        assert!(message.contains("did you mean `mock`?") && message.contains("cri, mock"), "{message}");
        assert!(!unknown_provider_message("zzz", &["mock"]).contains("did you mean"));
        assert!(unknown_provider_message("mock", &[]).contains("no providers"));
    }

    #[test]
    #[cfg(all(feature = "cluster", feature = "cri", feature = "eci", feature = "local", feature = "mock"))]
    fn the_builtin_providers_are_found_by_name() {
        let registry = Registry::with_builtin();
        assert_eq!(registry.names(), ["cluster", "cri", "eci", "local", "mock"]);
        assert_eq!(registry.get("mock").unwrap().name(), "mock");
        assert!(registry.get("nosuch").is_none());
    }
}
