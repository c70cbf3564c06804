//! What is refused, by whom, and in whose words.

use std::sync::Arc;

use http::Method;
use vk_provider::{
    Error, PodRef, Result,
    ability::{Attach as _, Exec as _, ExecOptions, LogOptions, Logs as _, PortForward as _},
    error::Kind,
};
use vk_provider_cluster::stream::{PodLocator, PodStreams};

use crate::fake_api_server::{Answer, Api, client, pod, soon, status};

const OPTIONS: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };

/// What each of the abilities answers.
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
async fn a_refusal_of_the_api_server_has_its_kind_and_its_words() {
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
        let api = Api::start(move |_| status(code, reason, words)).await;
        for error in refused(&api.streams()).await {
            assert_eq!(*error.kind(), kind, "{code}: {}", error.report());
            assert!(error.report().ends_with(words), "{}", error.report());
            assert!(error.message().contains("upper/web"), "{}", error.message());
        }
        // Only what may be allowed in another way is asked for in another way.
        let again = api.asked().iter().filter(|asked| asked.method == Method::POST).count();
        assert_eq!(again, if code == 403 { 3 } else { 0 }, "{code}");
    }
}

#[tokio::test]
async fn the_word_of_the_api_server_counts_more_than_that_of_a_proxy() {
    let api = Api::start(|asked| {
        if asked.method == Method::GET {
            return status(403, "Forbidden", "pods \"web-x\" is forbidden");
        }
        Answer::Text(400, "<html>what is SPDY?</html>".to_owned())
    })
    .await;
    let error = soon(api.streams().dial(&pod(), 80)).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Denied);
    assert!(error.report().ends_with("pods \"web-x\" is forbidden"), "{}", error.report());
}

#[tokio::test]
async fn a_server_that_switches_to_what_nobody_offered_is_not_believed() {
    let api = Api::start(|asked| asked.websocket("v9.channel.k8s.io", |_| async {})).await;
    let error =
        soon(api.streams().start(&pod().container("main"), &["x".to_owned()], &OPTIONS)).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Internal);
    assert!(error.report().contains("the server took \"v9.channel.k8s.io\""), "{}", error.report());
}

#[tokio::test]
async fn a_pod_that_is_not_below_is_not_asked_for() {
    let api = Api::start(|_| Answer::Text(200, String::new())).await;
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
async fn a_lower_cluster_that_is_not_there_is_unavailable() {
    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for error in refused(&PodStreams::new(client(address), Arc::new(Anywhere))).await {
        assert_eq!(*error.kind(), Kind::Unavailable, "{}", error.report());
        assert!(error.report().contains("refused"), "{}", error.report());
    }
}
