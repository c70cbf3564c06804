//! Logs.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use serde_json::json as value;
use tokio::sync::{mpsc, oneshot};
use vk_provider::{
    Result,
    ability::{LogBody, LogOptions, LogStream, Logs as _, Output, Since},
    error::Kind,
};

use crate::fake_api_server::{FakeApiServer, ScriptedAnswer, json, pod, soon, status};

async fn open(api: &FakeApiServer, options: LogOptions) -> Result<LogStream> {
    match soon(api.streams().open(&pod().container("main"), &options)).await? {
        LogBody::Final(stream) => Ok(stream),
        other => panic!("the options are applied below: {other:?}"),
    }
}

async fn all(stream: LogStream) -> String {
    let chunks: Vec<io::Result<Bytes>> = soon(stream.collect()).await;
    chunks.into_iter().map(|chunk| String::from_utf8(chunk.unwrap().to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn a_log_is_read_from_the_lower_pod() {
    let api = FakeApiServer::start(|_| ScriptedAnswer::Text(200, "one\ntwo\n".to_owned())).await;
    assert_eq!(all(open(&api, LogOptions::default()).await.unwrap()).await, "one\ntwo\n");
    let asked = api.only();
    assert_eq!(asked.path, "/api/v1/namespaces/lower/pods/web-x/log");
    assert_eq!(asked.query, "container=main");
}

/// In tensile-kube, both `since` options crashed the process.
#[tokio::test]
async fn tensile_kube_since_options_reach_the_lower_cluster() {
    let api = FakeApiServer::start(|_| ScriptedAnswer::Text(200, String::new())).await;
    let time = "2026-01-02T03:04:05.25Z".parse().unwrap();
    for since in [Since::Ago(Duration::from_secs(90)), Since::Time(time)] {
        drop(open(&api, LogOptions { since: Some(since), ..LogOptions::default() }).await.unwrap());
    }
    let queries: Vec<String> = api.asked().into_iter().map(|asked| asked.query).collect();
    assert_eq!(
        queries,
        ["container=main&sinceSeconds=90", "container=main&sinceTime=2026-01-02T03%3A04%3A05.25Z"]
    );
}

#[tokio::test]
async fn every_option_is_passed_to_the_lower_api_server() {
    let api = FakeApiServer::start(|_| ScriptedAnswer::Text(200, String::new())).await;
    let options = LogOptions {
        tail: Some(5),
        limit_bytes: Some(1000),
        timestamps: true,
        follow: true,
        previous: true,
        ..LogOptions::default()
    };
    drop(open(&api, options).await.unwrap());
    assert_eq!(
        api.only().query,
        "container=main&tailLines=5&limitBytes=1000&timestamps=true&follow=true&previous=true"
    );
}

#[tokio::test]
async fn a_followed_log_is_streamed_and_dropping_it_closes_the_connection() {
    struct NotifyOnDrop(mpsc::UnboundedSender<()>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (lines, next) = mpsc::unbounded_channel::<&'static str>();
    let (closed, mut is_closed) = mpsc::unbounded_channel();
    let state = std::sync::Mutex::new(Some((next, NotifyOnDrop(closed))));
    let api = FakeApiServer::start(move |_| {
        let state = state.lock().unwrap().take().unwrap();
        let body = stream::unfold(state, |mut state| async move {
            let line = state.0.recv().await?;
            Some((Ok(Bytes::from(line)), state))
        });
        ScriptedAnswer::Stream(body.boxed())
    })
    .await;
    lines.send("first\n").unwrap();
    let mut log = open(&api, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(soon(log.next()).await.unwrap().unwrap(), "first\n");
    lines.send("second\n").unwrap();
    assert_eq!(soon(log.next()).await.unwrap().unwrap(), "second\n");
    drop(log);
    soon(is_closed.recv()).await.unwrap();
}

/// A kubelet starts its answer with the first line.
#[tokio::test]
async fn the_first_line_of_a_followed_log_may_be_late() {
    let (write, written) = oneshot::channel();
    let written = std::sync::Mutex::new(Some(written));
    let api = FakeApiServer::start(move |_| {
        ScriptedAnswer::Late(written.lock().unwrap().take().unwrap(), "at last\n".to_owned())
    })
    .await;
    let (streams, container) = (api.streams(), pod().container("main"));
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let mut opening = std::pin::pin!(streams.open(&container, &options));
    while api.asked().is_empty() {
        let moment = tokio::time::sleep(Duration::from_millis(1));
        futures::future::select(&mut opening, std::pin::pin!(moment)).await;
    }
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(1)).await;
    assert!(futures::poll!(&mut opening).is_pending());
    tokio::time::resume();
    write.send(()).unwrap();
    let LogBody::Final(log) = soon(opening).await.unwrap() else { panic!("the options are applied below") };
    assert_eq!(all(log).await, "at last\n");
}

#[tokio::test]
async fn an_interrupted_log_is_an_error() {
    let (read, is_read) = oneshot::channel::<()>();
    let is_read = std::sync::Mutex::new(Some(is_read));
    let api = FakeApiServer::start(move |_| {
        let is_read = is_read.lock().unwrap().take().unwrap();
        let broken = stream::once(async {
            let _ = is_read.await;
            Err(io::Error::other("gone"))
        });
        ScriptedAnswer::Stream(stream::iter([Ok(Bytes::from("half a li"))]).chain(broken).boxed())
    })
    .await;
    let mut log = open(&api, LogOptions::default()).await.unwrap();
    assert_eq!(soon(log.next()).await.unwrap().unwrap(), "half a li");
    read.send(()).unwrap();
    soon(log.next()).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_single_stream_is_requested_only_if_it_is_supported() {
    let version = |minor: &'static str| {
        move |asked: &crate::fake_api_server::RecordedRequest| match asked.path.as_str() {
            "/version" => json(&value!({
                "major": "1", "minor": minor, "gitVersion": "v1", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            })),
            _ => ScriptedAnswer::Text(200, "out\n".to_owned()),
        }
    };
    let options = || LogOptions { output: Output::Stdout, ..LogOptions::default() };

    let new = FakeApiServer::start(version("36")).await;
    assert_eq!(all(open(&new, options()).await.unwrap()).await, "out\n");
    assert_eq!(new.asked()[1].query, "container=main&stream=Stdout");

    // It would answer with both streams.
    let old = FakeApiServer::start(version("31+")).await;
    let error = open(&old, options()).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Unsupported);
    assert_eq!(old.asked().len(), 1);
}

#[tokio::test]
async fn a_server_without_the_feature_gate_is_unsupported() {
    let api = FakeApiServer::start(|asked| match asked.path.as_str() {
        "/version" => json(&value!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.4", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        })),
        _ => status(422, "Invalid", "PodLogOptions is invalid: stream: Forbidden: may not be specified"),
    })
    .await;
    let options = LogOptions { output: Output::Stderr, ..LogOptions::default() };
    let error = open(&api, options).await.err().unwrap();
    assert_eq!(*error.kind(), Kind::Unsupported);
    assert!(error.report().contains("PodLogsQuerySplitStreams"), "{}", error.report());
}

#[tokio::test]
async fn a_limit_of_zero_bytes_sends_no_request() {
    let api = FakeApiServer::start(|_| ScriptedAnswer::Text(200, "all of it".to_owned())).await;
    let log = open(&api, LogOptions { limit_bytes: Some(0), ..LogOptions::default() }).await.unwrap();
    assert_eq!(all(log).await, "");
    assert!(api.asked().is_empty());
}
