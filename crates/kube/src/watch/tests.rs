use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{self, Poll},
};

use futures::StreamExt as _;
use http::{Request, Response};
use k8s_openapi::api::core::v1::Node;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::{Client, Kind, Metrics};

/// The answer of a scripted server.
enum Answer {
    /// An error status.
    Status(u16),
    /// A list.
    List(Value),
    /// Events of a watch, which then ends or stays open.
    Watch(Vec<Value>, bool),
}

/// The query strings of the requests.
type Asked = Arc<Mutex<Vec<String>>>;

fn server(script: impl Fn(usize, &str) -> Answer + Send + Sync + 'static) -> (Client, Asked) {
    let asked = Asked::default();
    let (log, count, script) = (Arc::clone(&asked), AtomicUsize::new(0), Arc::new(script));
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let answer = script(count.fetch_add(1, Ordering::Relaxed), &query);
        log.lock().push(query);
        async move { Ok::<_, Infallible>(respond(answer)) }
    });
    (Client::fixed(kube::Client::new(service, "default"), Metrics::default()), asked)
}

/// A body with this text, which then ends or stays open.
struct ScriptedBody {
    text: Option<String>,
    open: bool,
}

impl http_body::Body for ScriptedBody {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
        match self.text.take() {
            Some(text) => Poll::Ready(Some(Ok(http_body::Frame::data(text.into())))),
            None if self.open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

fn respond(answer: Answer) -> Response<ScriptedBody> {
    let (code, text, open) = match answer {
        Answer::Status(code) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code});
            (code, status.to_string(), false)
        }
        Answer::List(list) => (200, list.to_string(), false),
        Answer::Watch(events, open) => {
            (200, events.iter().flat_map(|event| [event.to_string(), "\n".to_owned()]).collect(), open)
        }
    };
    Response::builder().status(code).body(ScriptedBody { text: Some(text), open }).expect("a response")
}

fn node(name: &str, version: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
           "metadata": {"name": name, "resourceVersion": version.to_string(), "selfLink": "old"}})
}

fn event(kind: &str, name: &str, version: u32) -> Value {
    json!({"type": kind, "object": node(name, version)})
}

fn bookmark(version: u32, end: bool) -> Value {
    let annotations = if end { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Node", "metadata": metadata}})
}

fn expired() -> Value {
    json!({"type": "ERROR", "object": {"status": "Failure", "message": "too old", "reason": "Expired", "code": 410}})
}

fn list(names: &[&str], version: u32, token: &str) -> Answer {
    let items: Vec<Value> = names.iter().map(|name| node(name, 1)).collect();
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
    Answer::List(json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": items}))
}

/// The next events as text.
async fn events(client: &Client, count: usize) -> Vec<String> {
    let trim = |node: &mut Node| node.metadata.self_link = None;
    let changes = Objects::<Node>::all(client.clone()).watch_trimmed(&Selector::default(), trim);
    let texts = changes.take(count).map(|change| match change {
        WatchEvent::Restarted => "restarted".to_owned(),
        WatchEvent::Listed => "listed".to_owned(),
        WatchEvent::Error(error) => format!("error {}", error.kind),
        WatchEvent::Applied(node) | WatchEvent::Deleted(node) if node.metadata.self_link.is_some() => {
            "not trimmed".to_owned()
        }
        WatchEvent::Applied(node) => format!("applied {}", node.metadata.name.unwrap_or_default()),
        WatchEvent::Deleted(node) => format!("deleted {}", node.metadata.name.unwrap_or_default()),
    });
    texts.collect().await
}

fn is_streamed(query: &str) -> bool {
    query.contains("sendInitialEvents=true")
}

#[tokio::test(start_paused = true)]
async fn a_list_of_the_current_state_is_streamed_and_becomes_the_watch() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(
            vec![
                event("ADDED", "a", 1),
                bookmark(2, false),
                event("ADDED", "b", 3),
                bookmark(4, true),
                event("MODIFIED", "a", 5),
                event("DELETED", "b", 6),
                bookmark(9, false),
            ],
            false,
        ),
        1 => Answer::Watch(vec![event("ADDED", "c", 10), expired()], true),
        _ => Answer::Watch(vec![bookmark(12, true)], true),
    });
    let all = events(&client, 10).await;
    let wanted = [
        "restarted",
        "applied a",
        "applied b",
        "listed",
        "applied a",
        "deleted b",
        "applied c",
        "error Expired",
        "restarted",
        "listed",
    ];
    assert_eq!(all, wanted);
    let asked = asked.lock();
    assert!(is_streamed(&asked[0]) && asked[0].ends_with("resourceVersion="), "the current state: {asked:?}");
    assert!(!is_streamed(&asked[1]) && asked[1].ends_with("resourceVersion=9"), "{asked:?}");
    assert!(is_streamed(&asked[2]), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_rejects_streaming_is_asked_once_and_then_listed_in_pages() {
    for code in [400, 422] {
        let (client, asked) = server(move |_, query| {
            if is_streamed(query) {
                Answer::Status(code)
            } else if query.contains("watch=true") {
                Answer::Watch(vec![event("ADDED", "c", 8)], true)
            } else if query.contains("continue=more") {
                list(&["b"], 7, "")
            } else {
                list(&["a"], 7, "more")
            }
        });
        for _ in 0..2 {
            let all = events(&client, 5).await;
            assert_eq!(all, ["restarted", "applied a", "applied b", "listed", "applied c"], "{code}");
        }
        let streamed = asked.lock().iter().filter(|query| is_streamed(query)).count();
        assert_eq!(streamed, 1, "{code}: the rejection is remembered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ignores_streaming_is_detected_by_its_silence() {
    let (client, asked) = server(|_, query| {
        if is_streamed(query) {
            // A server that ignores the parameter watches.
            Answer::Watch(vec![event("ADDED", "a", 1), bookmark(2, false)], true)
        } else if query.contains("watch=true") {
            Answer::Watch(Vec::new(), true)
        } else {
            list(&["a"], 7, "")
        }
    });
    let all = events(&client, 5).await;
    assert_eq!(all, ["restarted", "applied a", "restarted", "applied a", "listed"]);
    let all = events(&client, 3).await;
    assert_eq!(all, ["restarted", "applied a", "listed"]);
    assert_eq!(asked.lock().iter().filter(|query| is_streamed(query)).count(), 1);
}

/// Silence alone proves nothing: an unreachable server is silent too.
#[tokio::test(start_paused = true)]
async fn silence_does_not_disable_streaming_if_listing_fails_too() {
    let (client, asked) = server(|count, query| match count {
        0 => Answer::Watch(Vec::new(), true),
        1 => Answer::Status(503),
        _ if is_streamed(query) => Answer::Watch(vec![bookmark(4, true)], true),
        _ => Answer::Status(503),
    });
    let all = events(&client, 5).await;
    assert_eq!(all, ["restarted", "restarted", "error Server", "restarted", "listed"]);
    assert_eq!(asked.lock().iter().filter(|query| is_streamed(query)).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_list_is_restarted() {
    let (client, _) = server(|count, _| match count {
        0 => Answer::Watch(vec![event("ADDED", "a", 1)], false),
        _ => Answer::Watch(vec![event("ADDED", "b", 2), bookmark(2, true)], true),
    });
    let all = events(&client, 6).await;
    assert_eq!(all, ["restarted", "applied a", "error Unreachable", "restarted", "applied b", "listed"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_at_its_version_when_the_server_is_back() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(vec![bookmark(4, true)], false),
        1 => Answer::Status(503),
        2 => Answer::Status(401),
        _ => Answer::Watch(vec![event("ADDED", "a", 5)], true),
    });
    let all = events(&client, 5).await;
    assert_eq!(all, ["restarted", "listed", "error Server", "error Unauthorized", "applied a"]);
    assert!(asked.lock()[1..].iter().all(|query| query.ends_with("resourceVersion=4")), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_watch_backs_off() {
    let (client, asked) = server(|_, _| Answer::Status(403));
    let mut changes = Objects::<Node>::all(client).watch(&Selector::default()).boxed();
    let watching = async {
        while let Some(change) = changes.next().await {
            let WatchEvent::Error(error) = change else { panic!("{change:?}") };
            assert_eq!(error.kind, Kind::Forbidden);
        }
    };
    assert!(tokio::time::timeout(Duration::from_mins(2), watching).await.is_err(), "it never ends");
    let asked = asked.lock().len();
    assert!((10..=40).contains(&asked), "{asked} requests in two minutes");
}

/// A server that ends every watch at once must not cause a busy loop.
#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_back_off() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(vec![bookmark(4, true)], false),
        _ => Answer::Watch(Vec::new(), false),
    });
    let mut changes = Objects::<Node>::all(client).watch(&Selector::default()).boxed();
    let watching = async { while changes.next().await.is_some() {} };
    assert!(tokio::time::timeout(Duration::from_mins(2), watching).await.is_err(), "it never ends");
    let asked = asked.lock().len();
    assert!((10..=40).contains(&asked), "{asked} requests in two minutes");
}

/// A dropped connection and a stuck proxy are silent: no event, no bookmark, no error.
#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_opened_anew_where_it_was() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(vec![bookmark(4, true), bookmark(5, false)], true),
        _ => Answer::Watch(vec![event("ADDED", "a", 6)], true),
    });
    let begin = tokio::time::Instant::now();
    let all = events(&client, 4).await;
    assert_eq!(all, ["restarted", "listed", "error Timeout", "applied a"]);
    assert!(begin.elapsed() < Duration::from_secs(100), "{:?}", begin.elapsed());
    assert!(asked.lock()[1].ends_with("resourceVersion=5"), "{asked:?}");
}

/// API servers send no bookmarks for kinds that they do not cache.
#[tokio::test(start_paused = true)]
async fn silence_without_any_bookmark_is_no_error_but_the_watch_is_opened_anew() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(vec![bookmark(4, true)], true),
        1 => Answer::Watch(Vec::new(), true),
        _ => Answer::Watch(vec![event("ADDED", "a", 6)], true),
    });
    let begin = tokio::time::Instant::now();
    assert_eq!(events(&client, 3).await, ["restarted", "listed", "applied a"]);
    assert_eq!((asked.lock().len(), begin.elapsed()), (3, Duration::from_mins(3)));
}
