use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::sync::Semaphore;
use vk_supervisor::Clock;

use super::*;
use crate::cloud::error::{Class, Error};

const START: &str = "2026-01-01T00:00:00Z";
const HOUR: Duration = Duration::from_hours(1);

/// A clock that tests set.
#[derive(Clone)]
struct Time(Arc<Mutex<Timestamp>>);

impl Time {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(START.parse().unwrap())))
    }

    fn clock(&self) -> Clock {
        let now = Arc::clone(&self.0);
        Clock::new(move || *now.lock())
    }

    fn now(&self) -> Timestamp {
        *self.0.lock()
    }

    fn advance(&self, by: Duration) {
        let mut now = self.0.lock();
        *now = now.checked_add(by).unwrap();
    }
}

/// A source that gives prepared results, and waits for a permit before each.
struct Scripted {
    results: Mutex<VecDeque<Result<Credentials>>>,
    loads: AtomicUsize,
    permits: Semaphore,
}

impl Scripted {
    fn new(results: impl IntoIterator<Item = Result<Credentials>>) -> Arc<Self> {
        let results = Mutex::new(results.into_iter().collect());
        Arc::new(Self { results, loads: AtomicUsize::new(0), permits: Semaphore::new(100) })
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl CredentialSource for Scripted {
    async fn load(&self) -> Result<Credentials> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.permits.acquire().await.unwrap().forget();
        self.results.lock().pop_front().unwrap()
    }
}

fn cached(source: &Arc<Scripted>, time: &Time) -> CachedCredentials {
    seeded(source, time, 1)
}

fn seeded(source: &Arc<Scripted>, time: &Time, seed: u64) -> CachedCredentials {
    let source = Arc::clone(source) as Arc<dyn CredentialSource>;
    CachedCredentials::new(source, time.clock(), StdRng::seed_from_u64(seed))
}

fn key(id: &str) -> Credentials {
    Credentials::new(id, format!("secret of {id}"))
}

/// Temporary credentials that are valid for this time.
fn temporary(id: &str, time: &Time, lifetime: Duration) -> Credentials {
    key(id).with_token("token").expiring(time.now().checked_add(lifetime).unwrap())
}

fn failure() -> Error {
    Error::new(Class::Transient, "load", "nobody answers")
}

async fn id(cached: &CachedCredentials) -> Result<String> {
    cached.get().await.map(|credentials| credentials.access_key_id)
}

#[tokio::test]
async fn permanent_credentials_are_loaded_once() {
    let (time, source) = (Time::new(), Scripted::new([Ok(key("a"))]));
    let cached = cached(&source, &time);
    for _ in 0..3 {
        assert_eq!(id(&cached).await.unwrap(), "a");
        time.advance(1_000 * HOUR);
    }
    assert_eq!(source.loads(), 1);
}

#[tokio::test]
async fn temporary_credentials_are_renewed_before_they_expire_and_not_all_at_the_same_time() {
    let mut renewed_after = Vec::new();
    for seed in 0..20 {
        let time = Time::new();
        let (first, second) = (temporary("a", &time, HOUR), temporary("b", &time, 2 * HOUR));
        let source = Scripted::new([Ok(first), Ok(second)]);
        let cached = seeded(&source, &time, seed);
        let mut minutes = 0;
        while id(&cached).await.unwrap() == "a" {
            time.advance(Duration::from_mins(1));
            minutes += 1;
        }
        renewed_after.push(minutes);
    }
    assert!(renewed_after.iter().all(|minutes| (45..=50).contains(minutes)), "{renewed_after:?}");
    renewed_after.sort_unstable();
    renewed_after.dedup();
    assert!(renewed_after.len() > 2, "{renewed_after:?}");
}

#[tokio::test]
async fn credentials_with_a_short_lifetime_are_not_renewed_with_every_call() {
    let time = Time::new();
    let source = Scripted::new([Ok(temporary("a", &time, Duration::from_mins(6)))]);
    let cached = cached(&source, &time);
    for _ in 0..3 {
        assert_eq!(id(&cached).await.unwrap(), "a");
        time.advance(Duration::from_mins(1));
    }
    assert_eq!(source.loads(), 1);
}

#[tokio::test]
async fn one_caller_loads_and_all_others_wait_for_it() {
    let (time, source) = (Time::new(), Scripted::new([Ok(key("a"))]));
    source.permits.forget_permits(100);
    let cached = cached(&source, &time);
    let callers = join_all((0..50).map(|_| id(&cached)));
    let release = async {
        // All callers were polled once.
        tokio::task::yield_now().await;
        source.permits.add_permits(100);
    };
    let (ids, ()) = tokio::join!(callers, release);
    assert!(ids.iter().all(|id| id.as_deref() == Ok("a")));
    assert_eq!(source.loads(), 1);
}

#[tokio::test]
async fn nobody_waits_for_a_renewal_while_the_old_credentials_are_valid() {
    let time = Time::new();
    let (first, second) = (temporary("a", &time, HOUR), temporary("b", &time, 2 * HOUR));
    let source = Scripted::new([Ok(first), Ok(second)]);
    let cached = cached(&source, &time);
    cached.get().await.unwrap();
    time.advance(Duration::from_mins(55));
    source.permits.forget_permits(100);
    let mut renewal = Box::pin(id(&cached));
    assert!(futures::poll!(renewal.as_mut()).is_pending());
    // The others get the old ones at once.
    assert_eq!(id(&cached).await.unwrap(), "a");
    assert_eq!(source.loads(), 2);
    source.permits.add_permits(1);
    assert_eq!(renewal.await.unwrap(), "b");
    assert_eq!(id(&cached).await.unwrap(), "b");
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_block_the_others() {
    let (time, source) = (Time::new(), Scripted::new([Ok(key("a"))]));
    source.permits.forget_permits(100);
    let cached = cached(&source, &time);
    let mut given_up = Box::pin(id(&cached));
    assert!(futures::poll!(given_up.as_mut()).is_pending());
    drop(given_up);
    source.permits.add_permits(1);
    assert_eq!(id(&cached).await.unwrap(), "a");
}

#[tokio::test]
async fn old_credentials_are_used_while_renewals_fail_until_they_expire() {
    let time = Time::new();
    let first = temporary("a", &time, HOUR);
    let renewed = temporary("b", &time, 3 * HOUR);
    let source = Scripted::new([Ok(first), Err(failure()), Err(failure()), Err(failure()), Ok(renewed)]);
    let cached = cached(&source, &time);
    cached.get().await.unwrap();
    for minutes in [50, 3, 6] {
        time.advance(Duration::from_mins(minutes));
        assert_eq!(id(&cached).await.unwrap(), "a");
    }
    assert_eq!(source.loads(), 4);
    time.advance(Duration::from_mins(2));
    assert_eq!(id(&cached).await.unwrap(), "b", "61 minutes: the old ones have expired");
}

#[tokio::test]
async fn without_valid_credentials_the_failure_is_returned_and_the_source_is_not_asked_by_every_call() {
    let (time, source) = (Time::new(), Scripted::new([Err(failure()), Ok(key("a"))]));
    let cached = cached(&source, &time);
    let failures = join_all((0..10).map(|_| id(&cached))).await;
    assert!(failures.iter().all(|outcome| outcome.as_ref() == Err(&failure())), "{failures:?}");
    assert_eq!(source.loads(), 1);
    time.advance(Duration::from_secs(2));
    assert_eq!(id(&cached).await.unwrap(), "a");
}

#[tokio::test]
async fn a_failure_of_the_source_says_nothing_about_the_call_that_needs_the_credentials() {
    for (class, seen) in [
        (Class::NotFound, Class::Auth),
        (Class::Invalid { field: None }, Class::Auth),
        (Class::Quota, Class::Auth),
        (Class::Throttled { after: None }, Class::Transient),
        (Class::ClockSkew, Class::ClockSkew),
    ] {
        let source = Scripted::new([Err(Error::new(class.clone(), "load", "refused"))]);
        let error = cached(&source, &Time::new()).get().await.unwrap_err();
        assert_eq!(*error.class(), seen, "{class:?}");
    }
}

#[tokio::test]
async fn refused_credentials_are_loaded_again() {
    let (time, source) = (Time::new(), Scripted::new([Ok(key("a")), Ok(key("b"))]));
    let cached = cached(&source, &time);
    let refused = cached.get().await.unwrap();
    cached.reject(&refused);
    assert_eq!(id(&cached).await.unwrap(), "b");
    // An old call that was refused late says nothing about the new ones.
    cached.reject(&refused);
    assert_eq!(id(&cached).await.unwrap(), "b");
    assert_eq!(source.loads(), 2);
}

#[tokio::test]
async fn a_source_without_other_credentials_is_asked_ever_more_slowly() {
    let (time, source) = (Time::new(), Scripted::new((0..20).map(|_| Ok(key("a")))));
    let cached = cached(&source, &time);
    for _ in 0..600 {
        let credentials = cached.get().await.unwrap();
        cached.reject(&credentials);
        time.advance(Duration::from_secs(1));
    }
    assert!((5..15).contains(&source.loads()), "{} loads in ten minutes", source.loads());
}

#[tokio::test]
async fn credentials_that_are_issued_expired_mean_that_the_clock_is_wrong() {
    let time = Time::new();
    let issued = temporary("a", &time, HOUR);
    time.advance(2 * HOUR);
    let cached = cached(&Scripted::new([Ok(issued)]), &time);
    let error = cached.get().await.unwrap_err();
    assert_eq!(*error.class(), Class::ClockSkew);
    assert!(error.to_string().contains("2026-01-01T02:00:00Z"), "{error}");
}

#[test]
fn debug_shows_no_part_of_a_key() {
    let (time, credentials) = (Time::new(), key("s3cr3t-id").with_token("s3cr3t-token"));
    let cached = cached(&Scripted::new([]), &time);
    let shown = format!("{credentials:?} {cached:?}");
    assert!(!shown.contains("s3cr3t") && !shown.contains("secret of"), "{shown}");
}
