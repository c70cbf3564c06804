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

/// What a scripted server does with a request.
enum Answer {
    /// Refuses.
    Refuse(u16),
    /// A list.
    List(Value),
    /// Events of a watch, which then ends or stays open.
    Watch(Vec<Value>, bool),
}

/// Requests, as far as they matter here.
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

/// Text, and then the end or silence.
struct Text {
    text: Option<String>,
    open: bool,
}

impl http_body::Body for Text {
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

fn respond(answer: Answer) -> Response<Text> {
    let (code, text, open) = match answer {
        Answer::Refuse(code) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code});
            (code, status.to_string(), false)
        }
        Answer::List(list) => (200, list.to_string(), false),
        Answer::Watch(events, open) => {
            (200, events.iter().flat_map(|event| [event.to_string(), "\n".to_owned()]).collect(), open)
        }
    };
    Response::builder().status(code).body(Text { text: Some(text), open }).expect("a response")
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

/// The next changes, in words.
async fn words(client: &Client, count: usize) -> Vec<String> {
    let trim = |node: &mut Node| node.metadata.self_link = None;
    let changes = Objects::<Node>::cluster(client.clone()).watch_trimmed(&Selector::default(), trim);
    let words = changes.take(count).map(|change| match change {
        WatchEvent::Restarted => "restarted".to_owned(),
        WatchEvent::Listed => "listed".to_owned(),
        WatchEvent::Error(error) => format!("trouble {}", error.kind),
        WatchEvent::Applied(node) | WatchEvent::Deleted(node) if node.metadata.self_link.is_some() => {
            "not trimmed".to_owned()
        }
        WatchEvent::Applied(node) => format!("seen {}", node.metadata.name.unwrap_or_default()),
        WatchEvent::Deleted(node) => format!("deleted {}", node.metadata.name.unwrap_or_default()),
    });
    words.collect().await
}

fn is_streamed(query: &str) -> bool {
    query.contains("sendInitialEvents=true")
}

#[tokio::test(start_paused = true)]
async fn a_listing_is_streamed_as_of_now_and_goes_over_into_the_watch() {
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
    let all = words(&client, 10).await;
    let wanted = [
        "restarted",
        "seen a",
        "seen b",
        "listed",
        "seen a",
        "deleted b",
        "seen c",
        "trouble Expired",
        "restarted",
        "listed",
    ];
    assert_eq!(all, wanted);
    let asked = asked.lock();
    assert!(is_streamed(&asked[0]) && asked[0].ends_with("resourceVersion="), "as it is now: {asked:?}");
    assert!(!is_streamed(&asked[1]) && asked[1].ends_with("resourceVersion=9"), "{asked:?}");
    assert!(is_streamed(&asked[2]), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_to_stream_is_asked_once_and_then_for_pages() {
    for code in [400, 422] {
        let (client, asked) = server(move |_, query| {
            if is_streamed(query) {
                Answer::Refuse(code)
            } else if query.contains("watch=true") {
                Answer::Watch(vec![event("ADDED", "c", 8)], true)
            } else if query.contains("continue=more") {
                list(&["b"], 7, "")
            } else {
                list(&["a"], 7, "more")
            }
        });
        for _ in 0..2 {
            let all = words(&client, 5).await;
            assert_eq!(all, ["restarted", "seen a", "seen b", "listed", "seen c"], "{code}");
        }
        let streamed = asked.lock().iter().filter(|query| is_streamed(query)).count();
        assert_eq!(streamed, 1, "{code}: it is remembered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_of_streams_is_found_out_by_its_silence() {
    let (client, asked) = server(|_, query| {
        if is_streamed(query) {
            // What a server does that overlooks the question: it watches.
            Answer::Watch(vec![event("ADDED", "a", 1), bookmark(2, false)], true)
        } else if query.contains("watch=true") {
            Answer::Watch(Vec::new(), true)
        } else {
            list(&["a"], 7, "")
        }
    });
    let all = words(&client, 5).await;
    assert_eq!(all, ["restarted", "seen a", "restarted", "seen a", "listed"]);
    let all = words(&client, 3).await;
    assert_eq!(all, ["restarted", "seen a", "listed"]);
    assert_eq!(asked.lock().iter().filter(|query| is_streamed(query)).count(), 1);
}

/// Silence alone proves nothing: a server that cannot be reached is silent too.
#[tokio::test(start_paused = true)]
async fn silence_of_a_server_that_does_not_list_either_is_not_held_against_it() {
    let (client, asked) = server(|count, query| match count {
        0 => Answer::Watch(Vec::new(), true),
        1 => Answer::Refuse(503),
        _ if is_streamed(query) => Answer::Watch(vec![bookmark(4, true)], true),
        _ => Answer::Refuse(503),
    });
    let all = words(&client, 5).await;
    assert_eq!(all, ["restarted", "restarted", "trouble Server", "restarted", "listed"]);
    assert_eq!(asked.lock().iter().filter(|query| is_streamed(query)).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_breaks_is_begun_anew() {
    let (client, _) = server(|count, _| match count {
        0 => Answer::Watch(vec![event("ADDED", "a", 1)], false),
        _ => Answer::Watch(vec![event("ADDED", "b", 2), bookmark(2, true)], true),
    });
    let all = words(&client, 6).await;
    assert_eq!(all, ["restarted", "seen a", "trouble Unreachable", "restarted", "seen b", "listed"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_where_it_was_when_the_server_comes_back() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(vec![bookmark(4, true)], false),
        1 => Answer::Refuse(503),
        2 => Answer::Refuse(401),
        _ => Answer::Watch(vec![event("ADDED", "a", 5)], true),
    });
    let all = words(&client, 5).await;
    assert_eq!(all, ["restarted", "listed", "trouble Server", "trouble Unauthorized", "seen a"]);
    assert!(asked.lock()[1..].iter().all(|query| query.ends_with("resourceVersion=4")), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_asks_less_and_less_often() {
    let (client, asked) = server(|_, _| Answer::Refuse(403));
    let mut changes = Objects::<Node>::cluster(client).watch(&Selector::default()).boxed();
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

/// A server that ends every watch at once must not be asked in a circle.
#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_asked_for_less_and_less_often() {
    let (client, asked) = server(|count, _| match count {
        0 => Answer::Watch(vec![bookmark(4, true)], false),
        _ => Answer::Watch(Vec::new(), false),
    });
    let mut changes = Objects::<Node>::cluster(client).watch(&Selector::default()).boxed();
    let watching = async { while changes.next().await.is_some() {} };
    assert!(tokio::time::timeout(Duration::from_mins(2), watching).await.is_err(), "it never ends");
    let asked = asked.lock().len();
    assert!((10..=40).contains(&asked), "{asked} requests in two minutes");
}
