//! Keeps the `Retry-After` header of error responses.
//!
//! API priority and fairness, and an API server that shuts down, answer with plain text and say in the header how long to wait.
//! kube-rs drops the headers of errors. So the header is moved into the body, as the `retryAfterSeconds` of a Status, where
//! [`Error`](crate::Error) finds it.

use bytes::Bytes;
use http::{
    Response, StatusCode,
    header::{CONTENT_LENGTH, RETRY_AFTER},
};
use http_body::Body;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use serde_json::{Value, json};
use tower::BoxError;

/// Bytes read of an error response.
const MAX_BODY: usize = 64 << 10;
/// Characters kept of a response that is not a Status.
const MAX_TEXT: usize = 500;

/// Moves the header of an error response into its body.
pub(crate) async fn keep_retry_after<B>(
    response: Response<B>,
) -> Result<Response<Either<B, Full<Bytes>>>, BoxError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let failed = response.status().is_client_error() || response.status().is_server_error();
    let Some(seconds) = requested_seconds(&response).filter(|_| failed) else {
        return Ok(response.map(Either::Left));
    };
    let (mut parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_BODY).collect().await?.to_bytes();
    let status = to_status(&body, parts.status, seconds).to_string();
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Either::Right(Full::from(status))))
}

/// The number of seconds in the header. The other form, a date, is not used by API servers, and depends on two clocks.
fn requested_seconds<B>(response: &Response<B>) -> Option<u32> {
    response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// The Status in the body, or one with the body's text, with the time to wait.
fn to_status(body: &[u8], code: StatusCode, seconds: u32) -> Value {
    let parsed = serde_json::from_slice::<Value>(body).ok().filter(|value| value["kind"] == "Status");
    let mut status = parsed.unwrap_or_else(|| {
        let text: String = String::from_utf8_lossy(body).trim().chars().take(MAX_TEXT).collect();
        // Without a reason: it is not a Status of the API server.
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "message": text})
    });
    if !status["details"].is_object() {
        status["details"] = json!({});
    }
    let said = status["details"]["retryAfterSeconds"].as_u64().unwrap_or(0);
    status["details"]["retryAfterSeconds"] = json!(said.max(seconds.into()));
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::StreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use vk_supervisor::{Supervisor, task};

    use super::*;
    use crate::{Client, ClientOptions, Kind, Metrics, Objects, Selector, WatchEvent};

    /// A client of a server that gives this answer to every request.
    async fn client(answer: &'static str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (supervisor, owner) = (Supervisor::new(), Supervisor::new());
        supervisor.spawn("server", task::Kind::Work, async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                owner.spawn("connection", task::Kind::Work, async move {
                    let mut request = [0; 4096];
                    while connection.read(&mut request).await.is_ok_and(|count| count > 0) {
                        connection.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: main\n\
             clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: main, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        let options = ClientOptions { kubeconfig: Some(path), server: None };
        options.connect(&Supervisor::new(), Metrics::default()).await.unwrap()
    }

    /// As API priority and fairness answers.
    const REJECTED: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 7\r\n\
        Content-Length: 43\r\n\r\nToo many requests, please try again later.\n";

    #[tokio::test]
    async fn the_header_of_a_throttled_call_is_honoured() {
        let objects = Objects::<ConfigMap>::namespaced(client(REJECTED).await, "default");
        let error = objects.get("any").await.unwrap_err();
        assert_eq!(
            (error.kind, error.retry_after),
            (Kind::Throttled, Some(Duration::from_secs(7))),
            "{error}"
        );
        assert_eq!(error.message, "Too many requests, please try again later.");
        let error = objects.delete("any", "uid").await.unwrap_err();
        assert_eq!(
            (error.kind, error.retry_after),
            (Kind::Throttled, Some(Duration::from_secs(7))),
            "a write"
        );
    }

    #[tokio::test]
    async fn the_header_of_a_throttled_watch_is_honoured() {
        let objects = Objects::<ConfigMap>::namespaced(client(REJECTED).await, "default");
        let mut watch = Box::pin(objects.watch(&Selector::default()));
        let error = loop {
            if let Some(WatchEvent::Error(error)) = watch.next().await {
                break error;
            }
        };
        assert_eq!(
            (error.kind, error.retry_after),
            (Kind::Throttled, Some(Duration::from_secs(7))),
            "{error}"
        );
    }

    #[tokio::test]
    async fn the_header_of_a_server_that_shuts_down_is_honoured() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n";
        let objects = Objects::<ConfigMap>::namespaced(client(answer).await, "default");
        let error = objects.get("any").await.unwrap_err();
        assert_eq!((error.kind, error.retry_after), (Kind::Server, Some(Duration::from_secs(3))), "{error}");
    }

    #[test]
    fn a_status_keeps_its_content_and_the_longer_time() {
        let there =
            json!({"kind": "Status", "code": 429, "message": "slow", "details": {"retryAfterSeconds": 9}});
        let body = there.to_string();
        assert_eq!(to_status(body.as_bytes(), StatusCode::TOO_MANY_REQUESTS, 1), there);
        let longer = to_status(body.as_bytes(), StatusCode::TOO_MANY_REQUESTS, 12);
        assert_eq!(longer["details"]["retryAfterSeconds"], 12);
        assert_eq!(longer["message"], "slow");
    }
}
