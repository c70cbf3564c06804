//! Lets callers in, or not. One for all nodes of a process, which so share what was learnt.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, header};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tracing::{debug, warn};
use vk_supervisor::Clock;

use super::{
    attributes::Attributes,
    cache::{self, Cache},
    review::{Access, Reviews},
    user::User,
};
use crate::tls::clients::Authorities;

/// No token is longer; a real one has about a thousand letters.
const LONGEST_TOKEN: usize = 16 * 1024;
/// How many tokens and rights are remembered.
const REMEMBERED: usize = 4096;
/// The same for tokens that are nobody's, apart from the good ones: a stranger who tries many shall not displace those.
const REMEMBERED_BAD: usize = 1024;
/// How long a token stays nobody's.
const BAD_TOKEN: Duration = Duration::from_secs(10);
/// How many questions of a kind may be with the API server at a time.
const AT_ONCE: usize = 32;

/// How long answers of the API server are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Who a token belongs to.
    pub token: Duration,
    /// That a caller may do something.
    pub authorized: Duration,
    /// That a caller may not do something.
    pub unauthorized: Duration,
}

/// Knows callers by client certificate or token, and asks the API server what they may do. Nobody is anonymous.
pub struct Gate {
    authorities: Authorities,
    reviews: Arc<dyn Reviews>,
    lifetimes: Lifetimes,
    clock: Clock,
    tokens: Cache<User>,
    bad_tokens: Cache<()>,
    rights: Cache<bool>,
    /// Strangers can use up this one, and so not the other.
    about_tokens: Semaphore,
    about_rights: Semaphore,
}

// === impl Gate ===

impl Gate {
    /// A gate that trusts these authorities, and the API server for the rest.
    pub fn new(
        authorities: Authorities,
        reviews: Arc<dyn Reviews>,
        lifetimes: Lifetimes,
        clock: Clock,
    ) -> Self {
        Self {
            authorities,
            reviews,
            lifetimes,
            clock,
            tokens: Cache::new(REMEMBERED),
            bad_tokens: Cache::new(REMEMBERED_BAD),
            rights: Cache::new(REMEMBERED),
            about_tokens: Semaphore::new(AT_ONCE),
            about_rights: Semaphore::new(AT_ONCE),
        }
    }

    /// Who calls: by client certificate first, then by token, as in the kubelet. `None` for everybody else, also when the
    /// API server cannot be asked.
    pub async fn authenticate(&self, chain: &[CertificateDer<'_>], headers: &HeaderMap) -> Option<User> {
        if let Some(own) = chain.first() {
            match self.authorities.vouch_for(chain, self.clock.now()) {
                Ok(()) => {
                    if let Some(user) = User::of_certificate(own) {
                        return Some(user);
                    }
                }
                Err(reason) => debug!(reason, "a client certificate does not count"),
            }
        }
        self.token(bearer(headers)?).await
    }

    async fn token(&self, token: &str) -> Option<User> {
        if token.is_empty() || token.len() > LONGEST_TOKEN {
            return None;
        }
        let key = cache::key(token.as_bytes());
        if let Some(user) = self.tokens.get(&key) {
            return Some(user);
        }
        if self.bad_tokens.get(&key).is_some() {
            return None;
        }
        let _turn = self.about_tokens.acquire().await.ok()?;
        // Somebody else may have asked the same in the meantime.
        if let Some(user) = self.tokens.get(&key) {
            return Some(user);
        }
        match self.reviews.token(token).await {
            Ok(Some(user)) => {
                self.tokens.put(key, user.clone(), self.lifetimes.token);
                Some(user)
            }
            Ok(None) => {
                self.bad_tokens.put(key, (), BAD_TOKEN);
                None
            }
            Err(error) => {
                warn!(%error, "cannot ask the API server whose a token is: the caller is refused");
                None
            }
        }
    }

    /// Whether the user may do this to the node.
    pub async fn authorize(
        &self,
        node: &str,
        user: &User,
        attributes: &Attributes,
    ) -> Result<bool, vk_kube::Error> {
        for subresource in &attributes.subresources {
            let access = Access {
                user: user.clone(),
                verb: attributes.verb.to_owned(),
                subresource: (*subresource).to_owned(),
                node: node.to_owned(),
            };
            if self.access(&access).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn access(&self, access: &Access) -> Result<bool, vk_kube::Error> {
        let written = serde_json::to_vec(access)
            .map_err(|error| vk_kube::Error::new(vk_kube::Kind::Invalid, error.to_string()))?;
        let key = cache::key(&written);
        if let Some(allowed) = self.rights.get(&key) {
            return Ok(allowed);
        }
        let _turn = self.about_rights.acquire().await;
        if let Some(allowed) = self.rights.get(&key) {
            return Ok(allowed);
        }
        let allowed = self.reviews.access(access).await?;
        let life = if allowed { self.lifetimes.authorized } else { self.lifetimes.unauthorized };
        self.rights.put(key, allowed, life);
        Ok(allowed)
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("authorities", &self.authorities).finish_non_exhaustive()
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests;
