use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;

use super::*;

const LIFETIMES: Lifetimes = Lifetimes {
    token: Duration::from_mins(2),
    authorized: Duration::from_mins(5),
    unauthorized: Duration::from_secs(30),
};

/// Knows one token and one right, and counts the questions.
#[derive(Default)]
struct Oracle {
    asked: AtomicUsize,
    broken: bool,
}

#[async_trait]
impl Reviews for Oracle {
    async fn token(&self, token: &str) -> Result<Option<User>, vk_kube::Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.broken {
            return Err(vk_kube::Error::timeout(Duration::from_secs(1)));
        }
        Ok((token == "good").then(|| User { name: "jane".to_owned(), ..User::default() }))
    }

    async fn access(&self, access: &Access) -> Result<bool, vk_kube::Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let rights = HashMap::from([("log", "get"), ("proxy", "create")]);
        Ok(rights.get(access.subresource.as_str()) == Some(&access.verb.as_str()) && access.node == "vk")
    }
}

fn gate(oracle: Oracle) -> (Gate, Arc<Oracle>) {
    let oracle = Arc::new(oracle);
    let clock = Clock::new(|| "2026-06-01T00:00:00Z".parse::<Timestamp>().unwrap());
    let reviews = Arc::clone(&oracle) as Arc<dyn Reviews>;
    (Gate::new(Authorities::default(), reviews, LIFETIMES, clock), oracle)
}

fn with(authorization: &str) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(authorization).unwrap())])
}

async fn name(gate: &Gate, authorization: &str) -> Option<String> {
    gate.authenticate(&[], &with(authorization)).await.map(|user| user.name)
}

fn attributes(verb: &'static str, subresources: &[&'static str]) -> Attributes {
    Attributes { verb, subresources: subresources.to_vec() }
}

#[tokio::test]
async fn only_a_bearer_token_that_is_somebodys_is_let_in() {
    let (gate, _) = gate(Oracle::default());
    assert_eq!(name(&gate, "Bearer good").await.as_deref(), Some("jane"));
    assert_eq!(name(&gate, "bearer   good ").await.as_deref(), Some("jane"));
    for bad in ["Bearer bad", "Bearer", "Bearer ", "Basic good", "good", ""] {
        assert_eq!(name(&gate, bad).await, None, "{bad:?}");
    }
    assert_eq!(gate.authenticate(&[], &HeaderMap::new()).await, None);
    assert_eq!(name(&gate, &format!("Bearer {}", "x".repeat(LONGEST_TOKEN + 1))).await, None);
}

#[tokio::test]
async fn an_api_server_that_cannot_be_asked_lets_nobody_in() {
    let (gate, _) = gate(Oracle { broken: true, ..Oracle::default() });
    assert_eq!(name(&gate, "Bearer good").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_asked_about_once_until_its_time_is_over() {
    let (gate, oracle) = gate(Oracle::default());
    for _ in 0..100 {
        name(&gate, "Bearer good").await;
        name(&gate, "Bearer bad").await;
    }
    assert_eq!(oracle.asked.load(Ordering::Relaxed), 2);
    tokio::time::advance(BAD_TOKEN + Duration::from_secs(1)).await;
    name(&gate, "Bearer good").await;
    name(&gate, "Bearer bad").await;
    assert_eq!(oracle.asked.load(Ordering::Relaxed), 3);
    tokio::time::advance(LIFETIMES.token).await;
    name(&gate, "Bearer good").await;
    assert_eq!(oracle.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_are_nobodys_do_not_displace_good_ones() {
    let (gate, oracle) = gate(Oracle::default());
    name(&gate, "Bearer good").await;
    for number in 0..2 * REMEMBERED {
        name(&gate, &format!("Bearer bad-{number}")).await;
    }
    let before = oracle.asked.load(Ordering::Relaxed);
    name(&gate, "Bearer good").await;
    assert_eq!(oracle.asked.load(Ordering::Relaxed), before);
}

#[tokio::test(start_paused = true)]
async fn rights_are_asked_for_from_the_narrowest_on_and_remembered() {
    let (gate, oracle) = gate(Oracle::default());
    let user = User { name: "jane".to_owned(), ..User::default() };
    let may = async |verb, subresources: &[&'static str]| {
        gate.authorize("vk", &user, &attributes(verb, subresources)).await.unwrap()
    };
    assert!(may("get", &["log", "proxy"]).await);
    assert!(!may("get", &["pods", "proxy"]).await);
    assert!(may("create", &["pods", "proxy"]).await);
    let asked = oracle.asked.load(Ordering::Relaxed);
    assert_eq!(asked, 5);
    assert!(may("get", &["log", "proxy"]).await);
    assert!(!may("get", &["pods", "proxy"]).await);
    assert_eq!(oracle.asked.load(Ordering::Relaxed), asked);
    tokio::time::advance(LIFETIMES.unauthorized + Duration::from_secs(1)).await;
    assert!(!may("get", &["pods", "proxy"]).await);
    assert_eq!(oracle.asked.load(Ordering::Relaxed), asked + 2);
    assert!(!gate.authorize("other", &user, &attributes("get", &["log"])).await.unwrap());
}
