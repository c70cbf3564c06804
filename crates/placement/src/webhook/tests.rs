//! The webhook over HTTP.

use http::{Method, Request};
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
    assert_eq!(call(Method::GET, PODS_PATH, Vec::new()).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(call(Method::GET, "/healthz", Vec::new()).await, (StatusCode::OK, "ok".to_owned()));
}
