//! ServiceAccount tokens bound to a pod.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest as Body, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use parking_lot::Mutex;
use rand::RngExt as _;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use vk_kube::{Client, Kind, Objects};
use vk_provider::{
    Error, PodRef, Result, error,
    resolve::{Reference, ReferenceKind, Token, TokenLifetime},
};
use vk_supervisor::Clock;

use super::{AUTHORIZER_LAG, authorizer_backoff, fetched_objects::TokenKey, read_error_kind};

/// Maximum age of a token regardless of its lifetime, because the ServiceAccount may have changed.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Maximum jitter of renewals, to spread those of many pods.
const JITTER: Duration = Duration::from_secs(10);

/// The lifetime in seconds that admission writes into pods. The API server extends such tokens of its own audience to a year
/// (`--service-account-extend-token-expiration`, on by default), but reports this lifetime.
const EXTENDED: i64 = 60 * 60 + 7;
/// The longest lifetime in seconds that a request may name. The API server shortens it to the longest that it grants.
const LONGEST: i64 = 1 << 32;

/// The cached tokens of one pod, by what is requested.
#[derive(Default)]
pub(super) struct Tokens(Mutex<BTreeMap<CacheKey, CachedToken>>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CacheKey {
    request: TokenKey,
    longest: bool,
}

#[derive(Clone)]
struct CachedToken {
    token: Token,
    renew_at: Timestamp,
}

// === impl Tokens ===

impl Tokens {
    /// Returns a valid token and when to renew it. A token that cannot be renewed is used until it expires. The longest-lived token
    /// has the expiry that the API server enforces, and is only renewed towards that.
    pub(super) async fn get(
        &self,
        client: &Client,
        clock: &Clock,
        pod: &Pod,
        key: &TokenKey,
        lifetime: TokenLifetime,
    ) -> Result<(Token, Timestamp)> {
        let longest = lifetime == TokenLifetime::Longest;
        let key = CacheKey { request: if longest { key.longest() } else { key.clone() }, longest };
        let known = self.0.lock().get(&key).cloned();
        if let Some(held) = &known
            && clock.now() < held.renew_at
        {
            return Ok((held.token.clone(), held.renew_at));
        }
        match request(client, pod, &key.request).await {
            Ok(mut token) => {
                if longest {
                    token.expires = enforced_expiry(&token);
                }
                let max_age = if longest { SignedDuration::MAX } else { MAX_AGE };
                let held = CachedToken { renew_at: renewal(clock.now(), token.expires, max_age), token };
                self.0.lock().insert(key, held.clone());
                Ok((held.token, held.renew_at))
            }
            Err(error) => match known {
                Some(held) if clock.now() < held.token.expires => {
                    tracing::warn!(error = error.report(), "cannot renew a token; using the old one");
                    Ok((held.token, clock.now() + RETRY))
                }
                _ => Err(error),
            },
        }
    }

    /// Drops all tokens.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Delay before the next attempt to renew a token.
const RETRY: SignedDuration = SignedDuration::from_secs(30);

// === impl TokenKey ===

impl TokenKey {
    /// The request for the longest-lived token with this audience.
    fn longest(&self) -> Self {
        let extended = self.audience.is_none() && self.expiration_seconds == Some(EXTENDED);
        let seconds = if extended { EXTENDED } else { LONGEST };
        Self { audience: self.audience.clone(), expiration_seconds: Some(seconds) }
    }
}

/// When the API server stops accepting a token: the claim `exp`, which is later than the reported expiry if the token was extended.
fn enforced_expiry(token: &Token) -> Timestamp {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let claims = token.token.expose_secret().split('.').nth(1);
    let claims = claims.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let claims = claims.and_then(|json| serde_json::from_slice::<Claims>(&json).ok());
    claims.and_then(|claims| Timestamp::from_second(claims.exp).ok()).unwrap_or(token.expires)
}

/// Like the kubelet: at 80 % of the lifetime or at the maximum age, whichever is sooner, minus jitter.
fn renewal(now: Timestamp, expires: Timestamp, max_age: SignedDuration) -> Timestamp {
    let life = expires.duration_since(now).max(SignedDuration::ZERO);
    let jitter = SignedDuration::try_from(JITTER.mul_f64(rand::rng().random())).unwrap_or_default();
    now + (life * 4 / 5).min(max_age).saturating_sub(jitter).max(SignedDuration::ZERO)
}

/// Requests a token. Not cached.
pub(super) async fn request(client: &Client, pod: &Pod, key: &TokenKey) -> Result<Token> {
    let (Some(reference), Some(spec)) = (PodRef::of(pod), &pod.spec) else {
        return Err(Error::internal("request a token: the pod has no name or no spec"));
    };
    let account = spec.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let body = Body {
        spec: Some(TokenRequestSpec {
            audiences: key.audience.clone().map(|audience| vec![audience]),
            expiration_seconds: key.expiration_seconds,
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(reference.name.to_string()),
                uid: Some(reference.uid.to_string()),
            }),
            ..TokenRequestSpec::default()
        }),
        ..Body::default()
    };
    let accounts = Objects::<ServiceAccount>::namespaced(client.clone(), &*reference.namespace);
    let mut backoff = authorizer_backoff();
    let started = tokio::time::Instant::now();
    let answer: Body = loop {
        let permit = client.write_limiter().acquire_owned().await;
        let answer = accounts.create_subresource(account, "token", &body).await;
        drop(permit);
        match answer {
            Ok(answer) => break answer,
            Err(error) if error.kind == Kind::Forbidden && started.elapsed() < AUTHORIZER_LAG => {
                let wait = backoff.next(None, &mut rand::rng());
                tokio::time::sleep(wait).await;
            }
            Err(error) => return Err(request_error(error, &reference, account)),
        }
    };
    let status = answer.status.unwrap_or_default();
    match (status.token, status.expiration_timestamp) {
        (Some(token), Some(expires)) => Ok(Token { token: token.into(), expires: expires.0 }),
        _ => Err(Error::internal("request a token: the response has none")),
    }
}

fn request_error(error: vk_kube::Error, pod: &PodRef, account: &str) -> Error {
    let message = format!("request a token of ServiceAccount {}/{account}", pod.namespace);
    let kind = match error.kind {
        // NotFound can also mean that the pod is gone.
        Kind::NotFound if error.message.contains("serviceaccount") => {
            error::Kind::Unresolved(Reference::new(ReferenceKind::ServiceAccount, &*pod.namespace, account))
        }
        Kind::NotFound | Kind::Conflict | Kind::Replaced => error::Kind::NotFound,
        Kind::Invalid => error::Kind::Invalid,
        _ => read_error_kind(&error),
    };
    Error::new(kind, message).caused_by(error)
}

#[cfg(test)]
mod tests;
