//! ServiceAccount tokens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::SignedDuration;
use serde_json::{Value, json};
use vk_node::resolve::Limits;
use vk_provider::{
    Resolver as _,
    error::Kind,
    resolve::{FileSet, TokenLifetime, TokenRequest},
};
use vk_supervisor::Clock;
use vk_testing::{ControlPlane, control_plane::Options};

use super::resolver_test::{ResolverTest, Setup, next, no_more};

/// A clock that is some seconds ahead of the system's.
fn ahead(seconds: &Arc<AtomicI64>) -> Clock {
    let (system, seconds) = (Clock::system(), Arc::clone(seconds));
    Clock::new(move || system.now() + SignedDuration::from_secs(seconds.load(Ordering::Relaxed)))
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn a_token_in_a_volume_is_renewed_at_80_percent_of_its_lifetime() {
    let moved = Arc::new(AtomicI64::new(0));
    let limits = Limits { clock: Duration::from_millis(50), ..Limits::default() };
    let test = ResolverTest::with("renewal", Setup { limits, clock: ahead(&moved) }).await;
    let token =
        json!({"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3600}});
    let spec = json!({"volumes": [{"name": "files", "projected": {"sources": [token]}}]});
    let (_, answers) = test.pod("web", spec).await;
    let mut files = answers.volume("files", TokenLifetime::Specified);
    let first = next(&mut files).await.unwrap();
    assert_eq!(first.files["token"].mode, 0o644);

    moved.store(47 * 60, Ordering::Relaxed);
    no_more(&mut files).await;
    moved.store(48 * 60 + 1, Ordering::Relaxed);
    let second = next(&mut files).await.unwrap();
    assert_ne!(first.files["token"].content, second.files["token"].content);
    no_more(&mut files).await;
}

/// Sources of a token for the API server with the default lifetime, and of one for another audience.
fn two_tokens() -> Value {
    json!({"volumes": [{"name": "files", "projected": {"sources": [
        {"serviceAccountToken": {"path": "api", "expirationSeconds": 3607}},
        {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 3600}},
    ]}}]})
}

/// When a token in a file was issued and expires, in seconds.
fn claims(set: &FileSet, path: &str) -> (i64, i64) {
    let token = std::str::from_utf8(&set.files[path].content).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    (claims["iat"].as_i64().unwrap(), claims["exp"].as_i64().unwrap())
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn tokens_have_the_longest_lifetime_that_the_api_server_grants_if_the_provider_wants_it() {
    let test = ResolverTest::new("longest").await;
    let (_, answers) = test.pod("web", two_tokens()).await;
    let mut files = answers.volume("files", TokenLifetime::Longest);
    let set = next(&mut files).await.unwrap();
    let life = |path: &str| {
        let (issued, expires) = claims(&set, path);
        expires - issued
    };
    // The API server extends the first to a year, and has no maximum of its own for the second but the highest value of the field.
    assert_eq!((life("api"), life("vault")), (365 * 24 * 60 * 60, 1 << 32));
    let expires = set.expires.unwrap().as_second();
    assert_eq!(expires, claims(&set, "api").1, "the API server accepts it until then");
    no_more(&mut files).await;

    let mut files = answers.volume("files", TokenLifetime::Specified);
    let set = next(&mut files).await.unwrap();
    let (issued, expires) = claims(&set, "vault");
    assert_eq!(expires - issued, 3600);
    assert!(set.expires.unwrap().as_second() <= expires);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn the_api_server_limits_the_longest_lifetime() {
    let options = Options {
        extra_api_server_args: vec![
            "--service-account-max-token-expiration=2h".to_owned(),
            "--service-account-extend-token-expiration=false".to_owned(),
        ],
        ..Options::default()
    };
    let cluster = Box::pin(ControlPlane::start(options)).await.unwrap();
    let test = ResolverTest::on(&cluster, "capped", Setup::default()).await;
    let (_, answers) = test.pod("web", two_tokens()).await;
    let set = next(&mut answers.volume("files", TokenLifetime::Longest)).await.unwrap();
    let life = |path: &str| {
        let (issued, expires) = claims(&set, path);
        expires - issued
    };
    // Nothing is extended, and nothing lives longer than two hours.
    assert_eq!((life("api"), life("vault")), (3607, 7200));
    assert_eq!(set.expires.unwrap().as_second(), claims(&set, "api").1);
}

#[tokio::test]
#[ignore = "needs the control plane: make test"]
async fn tokens_are_limited_to_audiences_of_the_pods_volumes() {
    let test = ResolverTest::new("audience").await;
    let token = json!({"serviceAccountToken": {"path": "token", "audience": "vault"}});
    let spec = json!({"volumes": [{"name": "files", "projected": {"sources": [token]}}]});
    let (_, answers) = test.pod("web", spec).await;
    let request = |audience: &str| TokenRequest {
        audience: Some(audience.to_owned()),
        lifetime: Some(Duration::from_mins(10)),
    };
    let token = answers.token(&request("vault")).await.unwrap();
    assert!(token.expires > Clock::system().now());
    let error = answers.token(&request("elsewhere")).await.unwrap_err();
    assert_eq!(*error.kind(), Kind::Denied, "{error:?}");
}
