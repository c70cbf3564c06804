//! Authenticates callers by client certificate or bearer token.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, header};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tracing::warn;
use vk_supervisor::Clock;

use super::{
    CACHE_SIZE, CONCURRENT_REVIEWS, CacheTtls, UserInfo,
    cache::{self, TtlCache},
    review::Reviewer,
};
use crate::{log_limit::LogLimit, tls::client_ca::ClientCa};

/// The longest token that is reviewed; a real one has about a thousand characters.
pub(super) const MAX_TOKEN: usize = 16 * 1024;
/// Cached invalid tokens. They have their own cache, so that a caller who tries many cannot evict valid ones.
const INVALID_CACHE_SIZE: usize = 1024;
/// How long a token is cached as invalid.
pub(super) const INVALID_TTL: Duration = Duration::from_secs(10);

/// Authenticates callers, and caches the answers of token reviews. There are no anonymous callers. All nodes of a process share
/// it.
pub struct Authenticator {
    client_ca: ClientCa,
    reviewer: Arc<dyn Reviewer>,
    token_ttl: Duration,
    clock: Clock,
    tokens: TtlCache<UserInfo>,
    invalid_tokens: TtlCache<()>,
    /// Unauthenticated callers can exhaust it, but not the limit of the authorizer.
    reviews: Semaphore,
    /// Limits the log lines about rejected certificates.
    rejections: LogLimit,
}

// === impl Authenticator ===

impl Authenticator {
    /// Trusts client certificates of this CA, and tokens that the API server knows.
    pub fn new(client_ca: ClientCa, reviewer: Arc<dyn Reviewer>, ttls: CacheTtls, clock: Clock) -> Self {
        Self {
            client_ca,
            reviewer,
            token_ttl: ttls.token,
            clock,
            tokens: TtlCache::new(CACHE_SIZE),
            invalid_tokens: TtlCache::new(INVALID_CACHE_SIZE),
            reviews: Semaphore::new(CONCURRENT_REVIEWS),
            rejections: LogLimit::default(),
        }
    }

    /// Identifies the caller: by client certificate first, then by token, as in the kubelet. `None` for everybody else, also
    /// when the API server is unavailable. If there is an audience, tokens for it count beside those for the API server.
    pub async fn authenticate(
        &self,
        chain: &[CertificateDer<'_>],
        headers: &HeaderMap,
        audience: Option<&str>,
    ) -> Option<UserInfo> {
        let rejected = match self.authenticate_certificate(chain) {
            Some(Ok(user)) => return Some(user),
            Some(Err(reason)) => Some(reason),
            None => None,
        };
        let user = match bearer_token(headers) {
            Some(token) => self.authenticate_token(token, audience).await,
            None => None,
        };
        if let (None, Some(reason)) = (&user, rejected)
            && let Some(omitted) = self.rejections.allow()
        {
            warn!(reason, omitted, "client certificate rejected");
        }
        user
    }

    /// The user of a client certificate, or why it is rejected. `None` without a certificate.
    fn authenticate_certificate(&self, chain: &[CertificateDer<'_>]) -> Option<Result<UserInfo, String>> {
        let leaf = chain.first()?;
        let verified = self.client_ca.verify(chain, self.clock.now());
        let named = || UserInfo::from_certificate(leaf).ok_or_else(|| "it has no common name".to_owned());
        Some(verified.and_then(|()| named()))
    }

    async fn authenticate_token(&self, token: &str, audience: Option<&str>) -> Option<UserInfo> {
        if token.is_empty() || token.len() > MAX_TOKEN {
            return None;
        }
        if audience.is_some()
            && let Some(user) = self.review(token, audience).await
        {
            return Some(user);
        }
        self.review(token, None).await
    }

    /// The user of a token for this audience, or without one for the API server.
    async fn review(&self, token: &str, audience: Option<&str>) -> Option<UserInfo> {
        // What is true for one audience is not for another. Neither a token nor an audience has line ends.
        let key = cache::key(format!("{}\n{token}", audience.unwrap_or_default()).as_bytes());
        if let Some(user) = self.tokens.get(&key) {
            return Some(user);
        }
        if self.invalid_tokens.get(&key).is_some() {
            return None;
        }
        let _permit = self.reviews.acquire().await.ok()?;
        // Another request may have asked meanwhile.
        if let Some(user) = self.tokens.get(&key) {
            return Some(user);
        }
        match self.reviewer.review_token(token, audience).await {
            Ok(Some(user)) => {
                self.tokens.put(key, user.clone(), self.token_ttl);
                Some(user)
            }
            Ok(None) => {
                self.invalid_tokens.put(key, (), INVALID_TTL);
                None
            }
            Err(error) => {
                warn!(%error, audience, "cannot review a token: it does not authenticate the caller");
                None
            }
        }
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").field("client_ca", &self.client_ca).finish_non_exhaustive()
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
