//! The webhook over HTTP.

use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use axum::body;
use futures::{Stream, future};
use http::{Method, Request};
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::*;

async fn call(method: Method, path: &str, body: Vec<u8>) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from(body)).unwrap();
    let response = router(Settings::default()).oneshot(request).await.unwrap();
    let status = response.status();
    let body = body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_review_is_answered_on_both_paths() {
    let review = r#"{
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "namespace": "shop",
            "object": {"metadata": {"name": "web"}, "spec": {"containers": []}}
        }
    }"#;
    for (path, converts) in [(PODS_PATH, false), (NAMESPACES_PATH, true)] {
        let path = format!("{path}?timeout=5s");
        let (status, body) = call(Method::POST, &path, review.as_bytes().to_vec()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(body.contains("\"patch\""), converts, "{path}: {body}");
    }
}

#[tokio::test]
async fn a_request_that_is_no_review_is_refused_with_a_reason() {
    let (status, body) = call(Method::POST, PODS_PATH, b"{}".to_vec()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("AdmissionReview"), "{body}");
    let (status, body) = call(Method::POST, PODS_PATH, vec![b' '; 10 << 20]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(body.contains("more than 8388608 bytes"), "{body}");
    let objects = |count| "{},".repeat(count).into_bytes();
    assert_eq!(call(Method::POST, PODS_PATH, objects(MAX_OBJECTS)).await.0, StatusCode::BAD_REQUEST);
    let (status, body) = call(Method::POST, PODS_PATH, objects(MAX_OBJECTS + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(body.contains("more than 100000 JSON objects"), "{body}");
    assert_eq!(call(Method::GET, PODS_PATH, Vec::new()).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(call(Method::GET, "/healthz", Vec::new()).await, (StatusCode::OK, "ok".to_owned()));
}

/// A body of which nothing arrives.
struct StalledBody {
    /// How many are being read, and the most that were at the same time.
    read: Arc<[AtomicUsize; 2]>,
    is_read: bool,
}

impl Stream for StalledBody {
    type Item = io::Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !std::mem::replace(&mut self.is_read, true) {
            let now = self.read[0].fetch_add(1, Ordering::Relaxed) + 1;
            self.read[1].fetch_max(now, Ordering::Relaxed);
        }
        Poll::Pending
    }
}

impl Drop for StalledBody {
    fn drop(&mut self) {
        if self.is_read {
            self.read[0].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_many_requests_that_do_not_arrive_few_are_read_at_once_and_all_are_given_up_after_ten_seconds() {
    let (router, read) = (router(Settings::default()), Arc::<[AtomicUsize; 2]>::default());
    let started = Instant::now();
    let calls = (0..100).map(|_| {
        let stalled = StalledBody { read: Arc::clone(&read), is_read: false };
        let request = Request::post(PODS_PATH).body(Body::from_stream(stalled)).unwrap();
        router.clone().oneshot(request)
    });
    let all = tokio::time::timeout(Duration::from_mins(1), future::join_all(calls));
    for response in all.await.expect("all are given up") {
        let status = response.unwrap().status();
        assert!([StatusCode::REQUEST_TIMEOUT, StatusCode::SERVICE_UNAVAILABLE].contains(&status), "{status}");
    }
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    assert_eq!(read.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 32]);
    // They leave nothing behind.
    let request = Request::post(PODS_PATH).body(Body::from("{}")).unwrap();
    assert_eq!(router.oneshot(request).await.unwrap().status(), StatusCode::BAD_REQUEST);
}
