use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::client::Body;
use parking_lot::Mutex;

use super::*;
use crate::{Client, Metrics, Objects, Patch, Recorder, event::Severity};

const START: &str = "2026-01-01T00:00:00Z";
const SECOND: Duration = Duration::from_secs(1);

fn clock() -> Clock {
    Clock::following_tokio(START.parse().unwrap())
}

/// A deadline that both clocks reach after this time.
fn after(clock: &Clock, time: Duration) -> Deadline {
    Deadline { steady: Instant::now() + time, wall: clock.now() + time }
}

/// A client of a server that answers 404 after a second, and the methods of its requests.
fn server(fence: &Fence) -> (Client, Arc<Mutex<Vec<String>>>) {
    let guard = fence.clone();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        seen.lock().push(request.method().to_string());
        let carried = request.extensions().get::<Fence>().is_some();
        assert!(carried || request.method() == "GET" || !guard.is_open(), "a write without its fence");
        let status = br#"{"kind":"Status","status":"Failure","reason":"NotFound","message":"no","code":404}"#;
        let answer = http::Response::builder().status(404).body(Body::from(status.to_vec()));
        async move {
            tokio::time::sleep(SECOND).await;
            Ok::<_, std::convert::Infallible>(answer.expect("a response"))
        }
    });
    let client = Client::fixed(kube::Client::new(service, "default"), Metrics::default());
    (client.fenced(fence.clone()), asked)
}

/// Tries every kind of write and returns the errors.
async fn write_everything(client: &Client) -> Vec<Kind> {
    let nodes = Objects::<Node>::all(client.clone());
    let body = serde_json::json!({});
    let kinds = [
        nodes.create(&Node::default()).await.map(drop),
        nodes.patch("a", Patch::Merge(&body)).await.map(drop),
        nodes.patch_status("a", Patch::Merge(&body)).await.map(drop),
        nodes.delete("a", "uid").await,
        nodes.delete_with_grace("a", "uid", Duration::ZERO).await,
    ];
    let recorder = Recorder::new(client.clone(), "test", "a");
    recorder.publish(&ObjectReference::default(), Severity::Normal, "A", "b").await;
    kinds.into_iter().map(|answer| answer.unwrap_err().kind).collect()
}

#[tokio::test(start_paused = true)]
async fn a_closed_fence_blocks_all_writes_and_no_reads() {
    let fence = Fence::new(clock());
    let (client, asked) = server(&fence);
    assert_eq!(write_everything(&client).await, [Kind::Fenced; 5]);
    assert!(asked.lock().is_empty(), "no request was sent");
    assert_eq!(Objects::<Node>::all(client.clone()).get("a").await.unwrap_err().kind, Kind::NotFound);
    assert_eq!(write_everything(&client.unfenced()).await, [Kind::NotFound; 5]);

    fence.set(Some(after(&fence.clock, Duration::from_mins(1))));
    asked.lock().clear();
    assert_eq!(write_everything(&client).await, [Kind::NotFound; 5]);
    assert_eq!(*asked.lock(), ["POST", "PATCH", "PATCH", "DELETE", "DELETE", "POST"]);
}

#[tokio::test(start_paused = true)]
async fn a_write_in_progress_is_cancelled_when_the_fence_closes() {
    let fence = Fence::new(clock());
    let (client, asked) = server(&fence);
    let nodes = Objects::<Node>::all(client);
    for (limit, closes) in [(SECOND / 2, None), (SECOND * 60, Some(SECOND / 2))] {
        let begin = Instant::now();
        fence.set(Some(after(&fence.clock, limit)));
        let closing = async {
            if let Some(time) = closes {
                tokio::time::sleep(time).await;
                fence.set(None);
            }
        };
        let (answer, ()) = tokio::join!(nodes.delete("a", "uid"), closing);
        assert_eq!(answer.unwrap_err().kind, Kind::Fenced);
        assert_eq!(begin.elapsed(), SECOND / 2);
    }
    assert_eq!(asked.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_is_extended_in_time_stays_open() {
    let fence = Fence::new(clock());
    fence.set(Some(after(&fence.clock, SECOND)));
    let moving = async {
        for _ in 0..10 {
            tokio::time::sleep(SECOND / 2).await;
            fence.set(Some(after(&fence.clock, SECOND)));
        }
    };
    let (answer, ()) = tokio::join!(fence.guard(tokio::time::sleep(SECOND * 5)), moving);
    assert_eq!(answer, Ok(()));
    tokio::time::sleep(SECOND).await;
    assert!(!fence.is_open());
}

#[tokio::test(start_paused = true)]
async fn the_clock_that_reaches_the_deadline_first_closes_the_fence() {
    // A suspended host: the monotonic clock stopped, the wall clock did not.
    let ahead = Arc::new(AtomicUsize::new(0));
    let (base, jump) = (clock(), Arc::clone(&ahead));
    let jumping = Clock::new(move || base.now() + Duration::from_secs(jump.load(Ordering::Relaxed) as u64));
    let fence = Fence::new(jumping);
    fence.set(Some(after(&fence.clock, SECOND * 10)));
    assert!(fence.is_open());
    ahead.store(10, Ordering::Relaxed);
    assert!(!fence.is_open());
    ahead.store(0, Ordering::Relaxed);
    // The wall clock is set back.
    fence.set(Some(Deadline { wall: fence.clock.now() + SECOND * 1000, ..after(&fence.clock, SECOND) }));
    tokio::time::sleep(SECOND).await;
    assert!(!fence.is_open());
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_the_fence_opens_and_not_with_a_deadline_in_the_past() {
    let fence = Fence::new(clock());
    let late = fence.clone();
    let opening = async move {
        tokio::time::sleep(SECOND).await;
        late.set(Some(Deadline { steady: Instant::now(), wall: late.clock.now() }));
        tokio::time::sleep(SECOND).await;
        late.set(Some(after(&late.clock, SECOND)));
    };
    let begin = Instant::now();
    tokio::join!(fence.opened(), opening);
    assert_eq!(begin.elapsed(), SECOND * 2);
    drop(fence.close_on_drop());
    assert!(!fence.is_open(), "the guard was dropped");
}
