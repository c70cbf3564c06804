//! A fake API server with one lease, which checks that nobody else may write whenever somebody gets the lease.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{NAME, NAMESPACE};
use crate::{Client, Fence, Metrics};

/// How long a request and its answer travel.
const LATENCY: Duration = Duration::from_millis(5);

/// What happens to the requests of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Connection {
    #[default]
    Healthy,
    /// Requests do not arrive.
    DropsRequests,
    /// Requests take effect, and are never answered.
    DropsAnswers,
}

#[derive(Clone, Default)]
pub(super) struct FakeServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    replicas: BTreeMap<String, ReplicaState>,
    /// What must never happen. A panic would only end the task of a replica.
    violations: Vec<String>,
}

struct ReplicaState {
    fence: Fence,
    connection: Connection,
    requests: Vec<Method>,
}

impl FakeServer {
    /// The client of a new replica, whose requests the server tells from those of others.
    pub(super) fn client(&self, replica: &str, fence: &Fence) -> Client {
        let state =
            ReplicaState { fence: fence.clone(), connection: Connection::Healthy, requests: Vec::new() };
        self.0.lock().replicas.insert(replica.to_owned(), state);
        let (this, replica) = (self.clone(), replica.to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (this, replica) = (this.clone(), replica.clone());
            async move {
                if request.extensions().get::<Fence>().is_some() {
                    this.0.lock().violations.push(format!("{replica}: a call on the lease with a fence"));
                }
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                tokio::time::sleep(LATENCY).await;
                this.pass(&replica, Connection::DropsRequests).await;
                let (code, answer) = this.answer(&replica, &head.method, head.uri.path(), &body);
                tokio::time::sleep(LATENCY).await;
                this.pass(&replica, Connection::DropsAnswers).await;
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(answer).expect("a response"))
            }
        });
        let client = Client::fixed(kube::Client::new(service, "default"), Metrics::default());
        client.fenced(fence.clone())
    }

    /// Never returns if the connection of the replica is broken in this way.
    async fn pass(&self, replica: &str, broken: Connection) {
        if self.0.lock().replicas[replica].connection == broken {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn set_connection(&self, replica: &str, connection: Connection) {
        self.0.lock().replicas.get_mut(replica).expect("a replica").connection = connection;
    }

    /// The requests of a replica that arrived.
    pub(super) fn requests(&self, replica: &str) -> Vec<Method> {
        self.0.lock().replicas[replica].requests.clone()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    pub(super) fn lease(&self) -> Lease {
        serde_json::from_value(self.0.lock().lease.clone().expect("a lease")).expect("a Lease")
    }

    /// Changes the lease, as somebody with kubectl.
    pub(super) fn edit(&self, patch: &Value) {
        self.0.lock().write(patch);
    }

    fn answer(&self, replica: &str, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let mut state = self.0.lock();
        state.replicas.get_mut(replica).expect("a replica").requests.push(method.clone());
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}),
            )
        };
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match (method, &state.lease) {
            (&Method::POST, None) if path == all => {
                let uid = json!({"metadata": {"uid": "lease-uid"}});
                state.check_fences(replica, &body);
                state.write(&body);
                state.write(&uid);
                (201, state.lease.clone().unwrap_or_default())
            }
            (&Method::POST, Some(_)) if path == all => status(409, "AlreadyExists"),
            _ if path != format!("{all}/{NAME}") => status(403, "Forbidden"),
            (_, None) => status(404, "NotFound"),
            (&Method::GET, Some(lease)) => (200, lease.clone()),
            (&Method::PATCH, Some(lease)) => {
                // A patch without the version as precondition is refused, too.
                if body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                    return status(409, "Conflict");
                }
                state.check_fences(replica, &body);
                state.write(&body);
                (200, state.lease.clone().unwrap_or_default())
            }
            _ => status(403, "Forbidden"),
        }
    }
}

impl State {
    /// Nobody but the new holder may write any more; nobody at all if the lease is released.
    fn check_fences(&mut self, replica: &str, body: &Value) {
        let released = body["spec"]["holderIdentity"].is_null();
        for (name, other) in &self.replicas {
            let may_write = name == replica && !released;
            if !may_write && other.fence.is_open() {
                self.violations.push(format!("{replica} writes {body} while {name} may write"));
            }
        }
    }

    fn write(&mut self, patch: &Value) {
        self.version += 1;
        let lease = self.lease.get_or_insert_default();
        json_patch::merge(lease, patch);
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }
}
