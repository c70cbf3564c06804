use std::sync::Arc;

use http::{Request, Response};
use kube::client::Body as HttpBody;
use serde_json::{Value, json};
use vk_kube::Metrics;

use super::*;

fn after(life: SignedDuration) -> SignedDuration {
    let now = Timestamp::UNIX_EPOCH;
    renewal(now, now + life, MAX_AGE).duration_since(now)
}

fn token(text: &str) -> Token {
    Token { token: text.to_owned().into(), expires: Timestamp::UNIX_EPOCH }
}

#[test]
fn only_tokens_that_the_api_server_does_not_extend_are_requested_with_the_longest_lifetime() {
    let longest = |audience: Option<&str>, seconds| {
        let key = TokenKey { audience: audience.map(str::to_owned), expiration_seconds: seconds };
        let longest = key.longest();
        assert_eq!(longest.audience, key.audience);
        longest.expiration_seconds
    };
    assert_eq!(longest(None, Some(3607)), Some(3607));
    assert_eq!(longest(None, Some(3600)), Some(1 << 32));
    assert_eq!(longest(None, None), Some(1 << 32));
    assert_eq!(longest(Some("vault"), Some(3607)), Some(1 << 32));
}

#[test]
fn the_enforced_expiry_is_the_claim_of_the_token() {
    let claims = |claims: &str| token(&format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims)));
    let year = Timestamp::from_second(31_536_000).expect("a time");
    assert_eq!(enforced_expiry(&claims(r#"{"exp": 31536000, "iat": 0}"#)), year);
    for opaque in [claims(r#"{"exp": "soon"}"#), claims("{}"), token("opaque"), token("a.?.b")] {
        assert_eq!(enforced_expiry(&opaque), Timestamp::UNIX_EPOCH, "the reported expiry");
    }
}

#[test]
fn the_longest_lived_token_is_renewed_at_80_percent_of_its_lifetime_however_long_that_is() {
    let now = Timestamp::UNIX_EPOCH;
    let century = SignedDuration::from_secs(LONGEST);
    let renewed = renewal(now, now + century, SignedDuration::MAX).duration_since(now);
    let wanted = SignedDuration::from_secs(LONGEST * 4 / 5);
    assert!(renewed <= wanted && renewed >= wanted - SignedDuration::from_secs(10), "{renewed:?}");
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

const YEAR: i64 = 365 * 24 * 60 * 60;

/// An API server whose clock stands at the epoch. It extends what real ones extend, and grants at most ten years. Returns the lifetimes that
/// it is asked for.
fn server() -> (Client, Arc<Mutex<Vec<i64>>>) {
    let requests = Arc::<Mutex<Vec<i64>>>::default();
    let recorded = Arc::clone(&requests);
    let service = tower::service_fn(move |request: Request<HttpBody>| {
        let recorded = Arc::clone(&recorded);
        async move {
            let body = request.into_body().collect_bytes().await.expect("a body");
            let asked: Value = serde_json::from_slice(&body).expect("a request");
            let seconds = asked["spec"]["expirationSeconds"].as_i64().expect("a lifetime");
            recorded.lock().push(seconds);
            let granted = seconds.min(10 * YEAR);
            let extended =
                seconds == EXTENDED && asked["spec"]["audiences"].as_array().is_none_or(Vec::is_empty);
            let claims = json!({"exp": if extended { YEAR } else { granted }}).to_string();
            let expires = Timestamp::from_second(granted).expect("a time").to_string();
            let mut answer = asked;
            answer["status"] = json!({
                "token": format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims)),
                "expirationTimestamp": expires,
            });
            Response::builder().status(201).body(HttpBody::from(answer.to_string().into_bytes()))
        }
    });
    (Client::fixed(kube::Client::new(service, "default"), Metrics::default()), requests)
}

#[tokio::test]
async fn the_longest_lived_token_is_requested_once_and_expires_when_the_api_server_says() {
    let (client, requests) = server();
    let pod =
        json!({"metadata": {"namespace": "shop", "name": "web", "uid": "u-1"}, "spec": {"containers": []}});
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let (tokens, clock) = (Tokens::default(), Clock::new(|| Timestamp::UNIX_EPOCH));
    let key = |audience: Option<&str>, seconds| TokenKey {
        audience: audience.map(str::to_owned),
        expiration_seconds: Some(seconds),
    };
    let expires = async |key: TokenKey, lifetime| {
        let (token, renew_at) = tokens.get(&client, &clock, &pod, &key, lifetime).await.expect("a token");
        assert!(renew_at < token.expires);
        token.expires.as_second()
    };
    let (api, vault) = (key(None, EXTENDED), key(Some("vault"), 600));
    assert_eq!(expires(api.clone(), TokenLifetime::Longest).await, YEAR);
    assert_eq!(expires(vault.clone(), TokenLifetime::Longest).await, 10 * YEAR);
    // Another token than for a provider that replaces files.
    assert_eq!(expires(api.clone(), TokenLifetime::Specified).await, EXTENDED);
    assert_eq!(expires(vault.clone(), TokenLifetime::Specified).await, 600);
    assert_eq!(*requests.lock(), [EXTENDED, LONGEST, EXTENDED, 600]);
    for (key, lifetime) in [(api, TokenLifetime::Longest), (vault, TokenLifetime::Specified)] {
        expires(key, lifetime).await;
    }
    assert_eq!(requests.lock().len(), 4, "tokens are kept until they are renewed");
}
