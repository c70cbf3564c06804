//! ServiceAccount tokens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::SignedDuration;
use serde_json::json;
use vk_node::resolve::Limits;
use vk_provider::{Resolver as _, error::Kind, resolve::TokenRequest};
use vk_supervisor::Clock;

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
    let mut files = answers.volume("files");
    let first = next(&mut files).await.unwrap();
    assert_eq!(first.files["token"].mode, 0o644);

    moved.store(47 * 60, Ordering::Relaxed);
    no_more(&mut files).await;
    moved.store(48 * 60 + 1, Ordering::Relaxed);
    let second = next(&mut files).await.unwrap();
    assert_ne!(first.files["token"].content, second.files["token"].content);
    no_more(&mut files).await;
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
