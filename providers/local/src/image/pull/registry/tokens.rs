//! The tokens that registries issued. They are cached per set of credentials: otherwise a pod without credentials could
//! pull with a token from another pod's credentials.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use reqwest::header::HeaderValue;

/// Maximum number of caches to keep.
const MAX_CACHES: usize = 32;
/// Maximum number of tokens in a cache.
const MAX_TOKENS: usize = 64;

/// A registry and the credentials for it, of which only a hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RegistryKey {
    pub(super) host: String,
    pub(super) credentials: Option<String>,
}

/// How requests are authorized.
#[derive(Clone, Debug)]
pub(super) enum Authorization {
    /// By the credentials of the pull.
    Basic,
    /// By a token.
    Bearer(HeaderValue),
}

/// The most recently used caches.
#[derive(Debug, Default)]
pub(super) struct TokenCaches(Mutex<VecDeque<(RegistryKey, TokenCache)>>);

/// The tokens of one set of credentials, by repository.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenCache(Arc<Mutex<HashMap<String, Authorization>>>);

// === impl TokenCaches ===

impl TokenCaches {
    /// The cache for these credentials.
    pub(super) fn of(&self, key: &RegistryKey) -> TokenCache {
        let mut caches = self.0.lock();
        let known = caches.iter().position(|(known, _)| known == key).and_then(|place| caches.remove(place));
        let (key, cache) = known.unwrap_or_else(|| (key.clone(), TokenCache::default()));
        if caches.len() >= MAX_CACHES {
            caches.pop_front();
        }
        caches.push_back((key, cache.clone()));
        cache
    }
}

// === impl TokenCache ===

impl TokenCache {
    pub(super) fn get(&self, repository: &str) -> Option<Authorization> {
        self.0.lock().get(repository).cloned()
    }

    pub(super) fn insert(&self, repository: &str, authorization: Authorization) {
        let mut tokens = self.0.lock();
        if tokens.len() >= MAX_TOKENS {
            tokens.clear();
        }
        tokens.insert(repository.to_owned(), authorization);
    }

    pub(super) fn remove(&self, repository: &str) {
        self.0.lock().remove(repository);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(host: &str, credentials: Option<&str>) -> RegistryKey {
        RegistryKey { host: host.to_owned(), credentials: credentials.map(ToOwned::to_owned) }
    }

    #[test]
    fn each_set_of_credentials_has_tokens_of_its_own() {
        let caches = TokenCaches::default();
        caches.of(&key("a", Some("x"))).insert("r", Authorization::Basic);
        assert!(caches.of(&key("a", Some("x"))).get("r").is_some());
        for other in [key("a", None), key("a", Some("y")), key("b", Some("x"))] {
            assert!(caches.of(&other).get("r").is_none(), "{other:?}");
        }
        assert!(caches.of(&key("a", Some("x"))).get("other").is_none());
    }

    #[test]
    fn the_number_of_caches_and_tokens_is_limited() {
        let caches = TokenCaches::default();
        for number in 0..MAX_CACHES + 3 {
            caches.of(&key("a", Some(&number.to_string()))).insert("r", Authorization::Basic);
        }
        assert_eq!(caches.0.lock().len(), MAX_CACHES);
        assert!(caches.of(&key("a", Some("0"))).get("r").is_none(), "the oldest one is gone");
        let cache = TokenCache::default();
        for number in 0..3 * MAX_TOKENS {
            cache.insert(&number.to_string(), Authorization::Basic);
            assert!(cache.0.lock().len() <= MAX_TOKENS);
        }
    }
}
