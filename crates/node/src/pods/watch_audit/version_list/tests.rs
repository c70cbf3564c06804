use std::sync::atomic::{AtomicU32, Ordering};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_kube::Metrics;

use super::*;

/// A client of a server that answers with this, and the queries that it was asked.
fn client(
    answer: impl Fn(u32) -> (StatusCode, Value) + Send + Sync + 'static,
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let (log, answer, count) = (Arc::clone(&queries), Arc::new(answer), Arc::new(AtomicU32::new(0)));
    let service = tower::service_fn(move |request: Request<Body>| {
        log.lock().push(request.uri().query().unwrap_or_default().to_owned());
        let (status, body) = answer(count.fetch_add(1, Ordering::Relaxed));
        let body = Body::from(body.to_string().into_bytes());
        async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, std::convert::Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    (Client::fixed(kube::Client::new(service, "default"), Metrics::default()), queries)
}

fn page(uids: &[&str], token: &str) -> Value {
    let items = uids.iter().map(
        |uid| json!({"metadata": {"namespace": "default", "name": uid, "uid": uid, "resourceVersion": "5"}}),
    );
    let items: Vec<Value> = items.collect();
    json!({"metadata": {"resourceVersion": "9", "continue": token}, "items": items})
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_all_nodes_are_listed_in_pages_and_only_those_that_matter_are_kept() {
    let (client, queries) = client(|call| {
        let pages = [page(&["ours", "foreign"], "more"), page(&["missed"], "")];
        (StatusCode::OK, pages[call as usize % 2].clone())
    });
    let scope = AuditScope::AllNodes(Arc::new(|uid| uid != "foreign"));
    let Some(PodWatchEvent::Versions(list)) = pod_versions(client, scope, PERIOD).next().await else {
        panic!("a list of versions");
    };
    let uids: Vec<&str> = list.pods.keys().map(|uid| &**uid).collect();
    assert_eq!((list.version, uids), (9, vec!["missed", "ours"]));
    let queries = queries.lock();
    assert_eq!(queries.len(), 2, "{queries:?}");
    for query in &*queries {
        assert!(query.contains("limit=500"), "{query}");
        assert!(
            !query.contains("resourceVersion=0"),
            "the API server does not page what is in its cache: {query}"
        );
    }
    assert!(queries[1].contains("continue=more"), "{queries:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_until_a_list_succeeds() {
    let (client, _) = client(|call| match call {
        3 => (StatusCode::OK, page(&["a"], "")),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, json!({"kind": "Status", "code": 500, "message": "no"})),
    });
    let mut versions = pod_versions(client, AuditScope::Node("vk".to_owned()), PERIOD);
    for expected in [Some(1), Some(2), Some(3), None, Some(1)] {
        let failures = match versions.next().await {
            Some(PodWatchEvent::AuditFailed(failure)) => Some(failure.in_a_row),
            Some(PodWatchEvent::Versions(_)) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(failures, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_ends_is_a_failure() {
    let (client, queries) = client(|_| (StatusCode::OK, page(&[], "again")));
    let scope = AuditScope::AllNodes(Arc::new(|_| true));
    let mut versions = pod_versions(client, scope, PERIOD);
    let next = tokio::time::timeout(Duration::from_mins(10), versions.next()).await;
    assert!(
        matches!(next, Ok(Some(PodWatchEvent::AuditFailed(_)))),
        "{next:?} after {}",
        queries.lock().len()
    );
}
