//! ServiceAccount tokens bound to a pod.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest as Body, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use parking_lot::Mutex;
use rand::RngExt as _;
use vk_kube::{Client, Kind, Objects};
use vk_provider::{
    Error, PodRef, Result, error,
    resolve::{Reference, ReferenceKind, Token},
};
use vk_supervisor::Clock;

use super::{AUTHORIZER_LAG, authorizer_backoff, fetched_objects::TokenKey, read_error_kind};

/// Maximum age of a token regardless of its lifetime, because the ServiceAccount may have changed.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Maximum jitter of renewals, to spread those of many pods.
const JITTER: Duration = Duration::from_secs(10);

/// The cached tokens of one pod.
#[derive(Default)]
pub(super) struct Tokens(Mutex<BTreeMap<TokenKey, CachedToken>>);

#[derive(Clone)]
struct CachedToken {
    token: Token,
    renew_at: Timestamp,
}

// === impl Tokens ===

impl Tokens {
    /// Returns a valid token and when to renew it. A token that cannot be renewed is used until it expires.
    pub(super) async fn get(
        &self,
        client: &Client,
        clock: &Clock,
        pod: &Pod,
        key: &TokenKey,
    ) -> Result<(Token, Timestamp)> {
        let known = self.0.lock().get(key).cloned();
        if let Some(held) = &known
            && clock.now() < held.renew_at
        {
            return Ok((held.token.clone(), held.renew_at));
        }
        match request(client, pod, key).await {
            Ok(token) => {
                let held = CachedToken { renew_at: renewal(clock.now(), token.expires), token };
                self.0.lock().insert(key.clone(), held.clone());
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

/// Like the kubelet: at 80 % of the lifetime or after a day, whichever is sooner, minus jitter.
fn renewal(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now).max(SignedDuration::ZERO);
    let jitter = SignedDuration::try_from(JITTER.mul_f64(rand::rng().random())).unwrap_or_default();
    now + (life * 4 / 5).min(MAX_AGE).saturating_sub(jitter).max(SignedDuration::ZERO)
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
mod tests {
    use super::*;

    fn after(life: SignedDuration) -> SignedDuration {
        let now = Timestamp::UNIX_EPOCH;
        renewal(now, now + life).duration_since(now)
    }

    #[test]
    fn a_token_is_renewed_at_80_percent_of_its_lifetime_or_after_a_day() {
        for _ in 0..100 {
            let hour = after(SignedDuration::from_hours(1));
            assert!(hour <= SignedDuration::from_mins(48), "{hour:?}");
            assert!(hour >= SignedDuration::from_secs(48 * 60 - 10), "{hour:?}");
            let year = after(SignedDuration::from_hours(24 * 365));
            assert!(year <= MAX_AGE && year >= MAX_AGE - SignedDuration::from_secs(10), "{year:?}");
        }
    }

    #[test]
    fn an_expired_token_is_renewed_at_once() {
        assert_eq!(after(SignedDuration::from_secs(-5)), SignedDuration::ZERO);
    }
}
