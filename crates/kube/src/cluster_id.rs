//! The identity of a cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use rand::{SeedableRng as _, rngs::StdRng};
use tokio::time::Instant;
use tracing::{debug, warn};
use vk_supervisor::Backoff;

use crate::{Client, Error, Kind, Objects};

/// The id of a cluster: the UID of `kube-system`, which is as old as the cluster and cannot be deleted.
pub async fn cluster_id(client: &Client) -> Result<String, Error> {
    let namespaces: Objects<Namespace> = Objects::all(client.clone());
    let system = namespaces.get("kube-system").await?;
    system.metadata.uid.ok_or_else(|| Error::new(Kind::Server, "namespace kube-system has no UID"))
}

/// The id of a cluster; `None` at once if it may not be read. An API server that cannot answer is asked again within the limit: a process
/// that takes its cluster for one without an id would not find again what it has created in a backend.
pub async fn cluster_id_if_readable(client: &Client, limit: Option<Duration>) -> Option<String> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    let mut rng = StdRng::from_rng(&mut rand::rng());
    loop {
        let error = match cluster_id(client).await {
            Ok(id) => return Some(id),
            Err(error) => error,
        };
        if !matches!(error.kind, Kind::Throttled | Kind::Server | Kind::Timeout | Kind::Unreachable) {
            debug!(%error, "cannot read the id of the cluster, the UID of namespace kube-system");
            return None;
        }
        let wait = backoff.next(error.retry_after, &mut rng);
        if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
            warn!(%error, "cannot read the id of the cluster, the UID of namespace kube-system");
            return None;
        }
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::Metrics;

    /// An API server that gives these answers, the last one again and again, and the number of requests.
    fn server(answers: Vec<(u16, Value)>) -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            assert_eq!(request.uri().path(), "/api/v1/namespaces/kube-system");
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let (code, body) = answers[number.min(answers.len() - 1)].clone();
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async move { answer }
        });
        (Client::fixed(kube::Client::new(service, "default"), Metrics::default()), requests)
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code});
        (code, body)
    }

    fn namespace() -> (u16, Value) {
        (
            200,
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "kube-system", "uid": "u-1"}}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_not_read_the_id_has_none_after_one_request() {
        for answer in [failure(403, "Forbidden"), failure(401, "Unauthorized"), failure(404, "NotFound")] {
            let (client, requests) = server(vec![answer]);
            assert_eq!(cluster_id_if_readable(&client, None).await, None);
            assert_eq!(requests.load(Ordering::Relaxed), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_cannot_answer_is_asked_again() {
        let busy = failure(503, "ServiceUnavailable");
        let (client, requests) = server(vec![busy.clone(), busy, namespace()]);
        assert_eq!(cluster_id_if_readable(&client, None).await.as_deref(), Some("u-1"));
        assert_eq!(requests.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_id_is_given_up_at_the_limit() {
        let (client, requests) = server(vec![failure(503, "ServiceUnavailable")]);
        let started = Instant::now();
        assert_eq!(cluster_id_if_readable(&client, Some(Duration::from_secs(30))).await, None);
        assert!(started.elapsed() <= Duration::from_secs(30));
        assert!(requests.load(Ordering::Relaxed) > 2);
    }
}
