//! Tokens of a pod's ServiceAccount, bound to the pod.

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

use super::{TRAILING, objects::TokenKey, trailing, unreadable};

/// No token is used longer, whatever its life: its ServiceAccount may have changed.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);
/// How much earlier a token is renewed at most, so that those of many pods spread.
const JITTER: Duration = Duration::from_secs(10);

/// The tokens that one pod has got.
#[derive(Default)]
pub(super) struct Tokens(Mutex<BTreeMap<TokenKey, Held>>);

#[derive(Clone)]
struct Held {
    token: Token,
    renew_at: Timestamp,
}

// === impl Tokens ===

impl Tokens {
    /// A token that is good for some time, and when to come for the next one. A token that could not be renewed is used as
    /// long as it lives.
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
                let held = Held { renew_at: renewal(clock.now(), token.expires), token };
                self.0.lock().insert(key.clone(), held.clone());
                Ok((held.token, held.renew_at))
            }
            Err(error) => match known {
                Some(held) if clock.now() < held.token.expires => {
                    tracing::warn!(
                        error = error.report(),
                        "a token cannot be renewed: the old one is used on"
                    );
                    Ok((held.token, clock.now() + RETRY))
                }
                _ => Err(error),
            },
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// When a token that cannot be renewed is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(30);

/// As the kubelet does: at four fifths of its life or after a day, whichever is sooner, and a little earlier.
fn renewal(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now).max(SignedDuration::ZERO);
    let jitter = SignedDuration::try_from(JITTER.mul_f64(rand::rng().random())).unwrap_or_default();
    now + (life * 4 / 5).min(LONGEST).saturating_sub(jitter).max(SignedDuration::ZERO)
}

/// Asks for a token. Not cached.
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
    let mut backoff = trailing();
    let begun = tokio::time::Instant::now();
    let answer: Body = loop {
        let turn = client.write_limiter().acquire_owned().await;
        let answer = accounts.create_subresource(account, "token", &body).await;
        drop(turn);
        match answer {
            Ok(answer) => break answer,
            Err(error) if error.kind == Kind::Forbidden && begun.elapsed() < TRAILING => {
                let wait = backoff.next(None, &mut rand::rng());
                tokio::time::sleep(wait).await;
            }
            Err(error) => return Err(refused(error, &reference, account)),
        }
    };
    let status = answer.status.unwrap_or_default();
    match (status.token, status.expiration_timestamp) {
        (Some(token), Some(expires)) => Ok(Token { token: token.into(), expires: expires.0 }),
        _ => Err(Error::internal("request a token: the answer has none")),
    }
}

fn refused(error: vk_kube::Error, pod: &PodRef, account: &str) -> Error {
    let message = format!("request a token of ServiceAccount {}/{account}", pod.namespace);
    let kind = match error.kind {
        // It may be the pod that is not there any more.
        Kind::NotFound if error.message.contains("serviceaccount") => {
            error::Kind::Unresolved(Reference::new(ReferenceKind::ServiceAccount, &*pod.namespace, account))
        }
        Kind::NotFound | Kind::Conflict | Kind::Replaced => error::Kind::NotFound,
        Kind::Invalid => error::Kind::Invalid,
        _ => unreadable(&error),
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
    fn a_token_is_renewed_at_four_fifths_of_its_life_or_after_a_day() {
        for _ in 0..100 {
            let hour = after(SignedDuration::from_hours(1));
            assert!(hour <= SignedDuration::from_mins(48), "{hour:?}");
            assert!(hour >= SignedDuration::from_secs(48 * 60 - 10), "{hour:?}");
            let year = after(SignedDuration::from_hours(24 * 365));
            assert!(year <= LONGEST && year >= LONGEST - SignedDuration::from_secs(10), "{year:?}");
        }
    }

    #[test]
    fn a_token_that_ended_in_the_past_is_renewed_at_once() {
        assert_eq!(after(SignedDuration::from_secs(-5)), SignedDuration::ZERO);
    }
}
