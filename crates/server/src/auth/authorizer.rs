//! Authorizes callers with SubjectAccessReviews.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{
    CACHE_SIZE, CONCURRENT_REVIEWS, CacheTtls, UserInfo,
    attributes::RequestAttributes,
    cache::{self, TtlCache},
    review::{AccessRequest, Reviewer},
};

/// Asks the API server what callers may do, and caches the answers. All nodes of a process share it.
pub struct Authorizer {
    reviewer: Arc<dyn Reviewer>,
    ttls: CacheTtls,
    decisions: TtlCache<bool>,
    /// Separate from the limit of token reviews, which unauthenticated callers can exhaust.
    reviews: Semaphore,
}

// === impl Authorizer ===

impl Authorizer {
    /// Creates an authorizer with an empty cache.
    pub fn new(reviewer: Arc<dyn Reviewer>, ttls: CacheTtls) -> Self {
        Self {
            reviewer,
            ttls,
            decisions: TtlCache::new(CACHE_SIZE),
            reviews: Semaphore::new(CONCURRENT_REVIEWS),
        }
    }

    /// Whether the user may do this to the node.
    pub async fn authorize(
        &self,
        node: &str,
        user: &UserInfo,
        attributes: &RequestAttributes,
    ) -> Result<bool, vk_kube::Error> {
        for subresource in &attributes.subresources {
            let access = AccessRequest {
                user: user.clone(),
                verb: attributes.verb.to_owned(),
                subresource: (*subresource).to_owned(),
                node: node.to_owned(),
            };
            if self.is_allowed(&access).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn is_allowed(&self, access: &AccessRequest) -> Result<bool, vk_kube::Error> {
        let json = serde_json::to_vec(access)
            .map_err(|error| vk_kube::Error::new(vk_kube::Kind::Invalid, error.to_string()))?;
        let key = cache::key(&json);
        if let Some(allowed) = self.decisions.get(&key) {
            return Ok(allowed);
        }
        let _permit = self.reviews.acquire().await;
        // Another request may have asked meanwhile.
        if let Some(allowed) = self.decisions.get(&key) {
            return Ok(allowed);
        }
        let allowed = self.reviewer.review_access(access).await?;
        let ttl = if allowed { self.ttls.authorized } else { self.ttls.unauthorized };
        self.decisions.put(key, allowed, ttl);
        Ok(allowed)
    }
}

impl std::fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorizer").field("ttls", &self.ttls).finish_non_exhaustive()
    }
}
