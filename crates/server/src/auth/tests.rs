use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use vk_supervisor::Clock;

use super::{
    authenticator::{INVALID_TTL, MAX_TOKEN},
    review::AccessRequest,
    *,
};
use crate::tls::client_ca::ClientCa;

const TTLS: CacheTtls = CacheTtls {
    token: Duration::from_mins(2),
    authorized: Duration::from_mins(5),
    unauthorized: Duration::from_secs(30),
};

/// Knows a token for the API server, another for [`AUDIENCE`], and two permissions, and records the reviews.
#[derive(Default)]
struct FakeReviewer {
    asked: AtomicUsize,
    /// Of token reviews.
    audiences: Mutex<Vec<Option<String>>>,
    broken: bool,
    /// Reviews for an audience fail.
    ignores_audiences: bool,
}

const AUDIENCE: &str = "placement";

#[async_trait]
impl Reviewer for FakeReviewer {
    async fn review_token(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> Result<Option<UserInfo>, vk_kube::Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.audiences.lock().push(audience.map(str::to_owned));
        if self.broken || (self.ignores_audiences && audience.is_some()) {
            return Err(vk_kube::Error::timeout(Duration::from_secs(1)));
        }
        let name = match (token, audience) {
            ("good", None) => "jane",
            ("limited", Some(AUDIENCE)) => "placement",
            _ => return Ok(None),
        };
        Ok(Some(UserInfo { name: name.to_owned(), ..UserInfo::default() }))
    }

    async fn review_access(&self, access: &AccessRequest) -> Result<bool, vk_kube::Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let rights = HashMap::from([("log", "get"), ("proxy", "create")]);
        Ok(rights.get(access.subresource.as_str()) == Some(&access.verb.as_str()) && access.node == "vk")
    }
}

fn authenticator(reviewer: FakeReviewer) -> (Authenticator, Arc<FakeReviewer>) {
    let reviewer = Arc::new(reviewer);
    let clock = Clock::new(|| "2026-06-01T00:00:00Z".parse::<Timestamp>().unwrap());
    let shared = Arc::clone(&reviewer) as Arc<dyn Reviewer>;
    (Authenticator::new(ClientCa::default(), shared, TTLS, clock), reviewer)
}

fn with(authorization: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(authorization).unwrap())])
}

async fn name(authenticator: &Authenticator, authorization: &str) -> Option<String> {
    name_for(authenticator, authorization, None).await
}

async fn name_for(
    authenticator: &Authenticator,
    authorization: &str,
    audience: Option<&str>,
) -> Option<String> {
    authenticator.authenticate(&[], &with(authorization), audience).await.map(|user| user.name)
}

fn attributes(verb: &'static str, subresources: &[&'static str]) -> RequestAttributes {
    RequestAttributes { verb, subresources: subresources.to_vec() }
}

#[tokio::test]
async fn only_a_valid_bearer_token_authenticates() {
    let (authenticator, _) = authenticator(FakeReviewer::default());
    assert_eq!(name(&authenticator, "Bearer good").await.as_deref(), Some("jane"));
    assert_eq!(name(&authenticator, "bearer   good ").await.as_deref(), Some("jane"));
    for bad in ["Bearer bad", "Bearer", "Bearer ", "Basic good", "good", ""] {
        assert_eq!(name(&authenticator, bad).await, None, "{bad:?}");
    }
    assert_eq!(authenticator.authenticate(&[], &HeaderMap::new(), None).await, None);
    assert_eq!(name(&authenticator, &format!("Bearer {}", "x".repeat(MAX_TOKEN + 1))).await, None);
}

#[tokio::test]
async fn nobody_is_authenticated_while_the_api_server_is_unavailable() {
    let (authenticator, _) = authenticator(FakeReviewer { broken: true, ..FakeReviewer::default() });
    assert_eq!(name(&authenticator, "Bearer good").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_reviewed_once_until_its_cache_entry_expires() {
    let (authenticator, reviewer) = authenticator(FakeReviewer::default());
    for _ in 0..100 {
        name(&authenticator, "Bearer good").await;
        name(&authenticator, "Bearer bad").await;
    }
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), 2);
    tokio::time::advance(INVALID_TTL + Duration::from_secs(1)).await;
    name(&authenticator, "Bearer good").await;
    name(&authenticator, "Bearer bad").await;
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), 3);
    tokio::time::advance(TTLS.token).await;
    name(&authenticator, "Bearer good").await;
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn a_token_for_an_audience_counts_only_where_that_is_accepted() {
    let (authenticator, reviewer) = authenticator(FakeReviewer::default());
    let audience = Some(AUDIENCE);
    assert_eq!(name_for(&authenticator, "Bearer limited", audience).await.as_deref(), Some("placement"));
    assert_eq!(name(&authenticator, "Bearer limited").await, None);
    // The token of the API server counts everywhere. The audience is tried first.
    assert_eq!(name_for(&authenticator, "Bearer good", audience).await.as_deref(), Some("jane"));
    assert_eq!(name_for(&authenticator, "Bearer bad", audience).await, None);
    let [limited, none] = [Some(AUDIENCE.to_owned()), None];
    assert_eq!(
        *reviewer.audiences.lock(),
        [&limited, &none, &limited, &none, &limited, &none].map(Clone::clone)
    );
}

#[tokio::test(start_paused = true)]
async fn reviews_for_an_audience_are_cached_apart_from_those_for_the_api_server() {
    // Whatever comes first, neither answer is used for the other review.
    for order in [[Some(AUDIENCE), None], [None, Some(AUDIENCE)]] {
        let (authenticator, reviewer) = authenticator(FakeReviewer::default());
        for _ in 0..100 {
            for audience in order {
                let limited = name_for(&authenticator, "Bearer limited", audience).await;
                assert_eq!(limited.as_deref(), audience.map(|_| "placement"));
                assert_eq!(name_for(&authenticator, "Bearer good", audience).await.as_deref(), Some("jane"));
            }
        }
        assert_eq!(reviewer.asked.load(Ordering::Relaxed), 4, "two tokens, each for two audiences");
        tokio::time::advance(INVALID_TTL + Duration::from_secs(1)).await;
        assert_eq!(name(&authenticator, "Bearer limited").await, None);
        assert_eq!(reviewer.asked.load(Ordering::Relaxed), 5);
    }
}

#[tokio::test]
async fn a_failed_review_for_an_audience_does_not_keep_tokens_of_the_api_server_out() {
    let reviewer = FakeReviewer { ignores_audiences: true, ..FakeReviewer::default() };
    let (authenticator, _) = authenticator(reviewer);
    assert_eq!(name_for(&authenticator, "Bearer good", Some(AUDIENCE)).await.as_deref(), Some("jane"));
    assert_eq!(name_for(&authenticator, "Bearer limited", Some(AUDIENCE)).await, None);
}

#[tokio::test(start_paused = true)]
async fn invalid_tokens_do_not_evict_valid_ones() {
    let (authenticator, reviewer) = authenticator(FakeReviewer::default());
    name(&authenticator, "Bearer good").await;
    for number in 0..2 * CACHE_SIZE {
        name(&authenticator, &format!("Bearer bad-{number}")).await;
    }
    let before = reviewer.asked.load(Ordering::Relaxed);
    name(&authenticator, "Bearer good").await;
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), before);
}

#[tokio::test(start_paused = true)]
async fn access_is_reviewed_from_the_narrowest_subresource_on_and_cached() {
    let reviewer = Arc::new(FakeReviewer::default());
    let authorizer = Authorizer::new(Arc::clone(&reviewer) as Arc<dyn Reviewer>, TTLS);
    let user = UserInfo { name: "jane".to_owned(), ..UserInfo::default() };
    let may = async |verb, subresources: &[&'static str]| {
        authorizer.authorize("vk", &user, &attributes(verb, subresources)).await.unwrap()
    };
    assert!(may("get", &["log", "proxy"]).await);
    assert!(!may("get", &["pods", "proxy"]).await);
    assert!(may("create", &["pods", "proxy"]).await);
    let asked = reviewer.asked.load(Ordering::Relaxed);
    assert_eq!(asked, 5);
    assert!(may("get", &["log", "proxy"]).await);
    assert!(!may("get", &["pods", "proxy"]).await);
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), asked);
    tokio::time::advance(TTLS.unauthorized + Duration::from_secs(1)).await;
    assert!(!may("get", &["pods", "proxy"]).await);
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), asked + 2);
    assert!(!authorizer.authorize("other", &user, &attributes("get", &["log"])).await.unwrap());
}
