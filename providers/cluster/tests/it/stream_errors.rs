//! Errors of streaming requests: who rejects them, and with which message.

use std::sync::Arc;

use http::Method;
use vk_provider::{
    Error, PodRef, Result,
    ability::{Attach as _, Exec as _, ExecOptions, LogOptions, Logs as _, PortForward as _},
    error::Kind,
};
use vk_provider_cluster::stream::{PodLocator, PodStreams};

use crate::fake_api_server::{FakeApiServer, ScriptedAnswer, client, pod, soon, status};

const OPTIONS: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };

/// The errors of all abilities.
async fn refused(streams: &PodStreams) -> Vec<Error> {
    let container = pod().container("main");
    let command = ["x".to_owned()];
    vec![
        soon(streams.open(&container, &LogOptions::default())).await.err().unwrap(),
        soon(streams.start(&container, &command, &OPTIONS)).await.err().unwrap(),
        soon(streams.attach(&container, &OPTIONS)).await.err().unwrap(),
        soon(streams.dial(&pod(), 80)).await.err().unwrap(),
    ]
}

#[tokio::test]
async fn errors_of_the_api_server_keep_kind_and_message() {
    for (code, reason, words, kind) in [
        (404, "NotFound", "pods \"web-x\" not found", Kind::NotFound),
        (403, "Forbidden", "pods \"web-x\" is forbidden: User \"vk\" cannot get resource", Kind::Denied),
        (401, "Unauthorized", "Unauthorized", Kind::Denied),
        (400, "BadRequest", "container main is not valid for pod web-x", Kind::NotFound),
        (
            400,
            "BadRequest",
            "container \"main\" in pod \"web-x\" is waiting to start: ErrImagePull",
            Kind::Unavailable,
        ),
        (400, "BadRequest", "a container name must be specified", Kind::Invalid),
        (429, "TooManyRequests", "too many requests", Kind::Throttled { after: None }),
        (500, "InternalError", "dial tcp 10.0.0.1:10250: connection refused", Kind::Unavailable),
        (503, "ServiceUnavailable", "the server is shutting down", Kind::Unavailable),
    ] {
        let api = FakeApiServer::start(move |_| status(code, reason, words)).await;
        for error in refused(&api.streams()).await {
            assert_eq!(*error.kind(), kind, "{code}: {}", error.report());
            assert!(error.report().ends_with(words), "{}", error.report());
            assert!(error.message().contains("upper/web"), "{}", error.message());
        }
        // Only errors that the other protocol may avoid cause a fallback.
        let again = api.asked().iter().filter(|asked| asked.method == Method::POST).count();
        assert_eq!(again, if code == 403 { 3 } else { 0 }, "{code}");
    }
}

#[tokio::test]
async fn an_error_of_the_api_server_takes_precedence_over_that_of_a_proxy() {
    let api = FakeApiServer::start(|asked| {
        if asked.method == Method::GET {
            return status(403, "Forbidden", "pods \"web-x\" is forbidden");
        }
        ScriptedAnswer::Text(400, "<html>what is SPDY?</html>".to_owned())
    })
    .await;
    let error = soon(api.streams().dial(&pod(), 80)).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Denied);
    assert!(error.report().ends_with("pods \"web-x\" is forbidden"), "{}", error.report());
}

#[tokio::test]
async fn an_unexpected_protocol_is_rejected() {
    let api = FakeApiServer::start(|asked| asked.websocket("v9.channel.k8s.io", |_| async {})).await;
    let error =
        soon(api.streams().start(&pod().container("main"), &["x".to_owned()], &OPTIONS)).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Internal);
    assert!(error.report().contains("the server took \"v9.channel.k8s.io\""), "{}", error.report());
}

#[tokio::test]
async fn without_a_lower_pod_no_request_is_sent() {
    let api = FakeApiServer::start(|_| ScriptedAnswer::Text(200, String::new())).await;
    let absent = PodRef::new("upper", "absent", "u-2");
    let error =
        soon(api.streams().open(&absent.container("main"), &LogOptions::default())).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::NotFound);
    assert!(api.asked().is_empty());
}

struct Anywhere;

impl PodLocator for Anywhere {
    fn locate(&self, _: &PodRef) -> Result<(String, String)> {
        Ok(("lower".to_owned(), "web-x".to_owned()))
    }
}

#[tokio::test]
async fn an_unreachable_lower_cluster_is_unavailable() {
    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for error in refused(&PodStreams::new(client(address), Arc::new(Anywhere))).await {
        assert_eq!(*error.kind(), Kind::Unavailable, "{}", error.report());
        assert!(error.report().contains("refused"), "{}", error.report());
    }
}
