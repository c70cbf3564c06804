//! A fake API server with scripted answers.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Collected, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};
use vk_kube::{Client, Metrics};
use vk_provider::{Error, PodRef, Result};
use vk_provider_cluster::stream::{PodLocator, PodStreams};

/// Everything that a test waits for happens within this time.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) type Io = TokioIo<Upgraded>;
pub(crate) type Socket = WebSocketStream<Io>;
type Script = Box<dyn FnOnce(Io) -> BoxFuture<'static, ()> + Send>;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
}

/// An answer.
pub(crate) enum ScriptedAnswer {
    Text(u16, String),
    Stream(BoxStream<'static, io::Result<Bytes>>),
    Switch(Response<()>, Script),
    /// The text, after the receiver fires.
    Late(oneshot::Receiver<()>, String),
}

pub(crate) struct FakeApiServer {
    pub(crate) client: Client,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
    _tasks: JoinSet<()>,
}

impl FakeApiServer {
    pub(crate) async fn start(
        answer: impl Fn(&RecordedRequest) -> ScriptedAnswer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            let scripts = Arc::new(Mutex::new(JoinSet::new()));
            while let Ok((tcp, _)) = listener.accept().await {
                let (log, answer, scripts) = (Arc::clone(&log), Arc::clone(&answer), Arc::clone(&scripts));
                let service = service_fn(move |mut request: Request<Incoming>| {
                    let upgrade = hyper::upgrade::on(&mut request);
                    let (log, answer, scripts) =
                        (Arc::clone(&log), Arc::clone(&answer), Arc::clone(&scripts));
                    async move {
                        let asked = RecordedRequest::read(request).await;
                        log.lock().push(asked.clone());
                        let answer = match answer(&asked) {
                            ScriptedAnswer::Late(when, text) => {
                                let _ = when.await;
                                ScriptedAnswer::Text(200, text)
                            }
                            answer => answer,
                        };
                        Ok::<_, Infallible>(respond(answer, upgrade, &scripts))
                    }
                });
                connections.spawn(async move {
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(tcp), service)
                        .with_upgrades()
                        .await;
                });
            }
        });
        Self { client: client(address), asked, _tasks: tasks }
    }

    pub(crate) fn streams(&self) -> PodStreams {
        PodStreams::new(self.client.clone(), Arc::new(SuffixedNames))
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<RecordedRequest> {
        self.asked.lock().clone()
    }

    /// The only request.
    pub(crate) fn only(&self) -> RecordedRequest {
        let asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.into_iter().next().unwrap()
    }
}

/// A client like that of [`vk_kube::ClientOptions`]: callers decide what to retry.
pub(crate) fn client(address: SocketAddr) -> Client {
    let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
    config.default_retry = false;
    Client::fixed(kube::Client::try_from(config).unwrap(), Metrics::default())
}

fn respond(
    answer: ScriptedAnswer,
    upgrade: hyper::upgrade::OnUpgrade,
    scripts: &Mutex<JoinSet<()>>,
) -> Response<UnsyncBoxBody<Bytes, io::Error>> {
    let body = |stream: BoxStream<'static, io::Result<Bytes>>| {
        StreamBody::new(stream.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
    };
    match answer {
        ScriptedAnswer::Late(..) => unreachable!("it was waited for"),
        ScriptedAnswer::Text(code, text) => {
            let mut response = Response::new(body(stream::iter([Ok(Bytes::from(text))]).boxed()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            response
        }
        ScriptedAnswer::Stream(stream) => Response::new(body(stream)),
        ScriptedAnswer::Switch(response, script) => {
            scripts.lock().spawn(async move {
                if let Ok(upgraded) = upgrade.await {
                    script(TokioIo::new(upgraded)).await;
                }
            });
            response.map(|()| body(stream::empty().boxed()))
        }
    }
}

impl RecordedRequest {
    async fn read(request: Request<Incoming>) -> Self {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        Self {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers.clone(),
            parts,
            body,
        }
    }

    pub(crate) fn header(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// The protocols that are offered over WebSocket.
    pub(crate) fn offers(&self) -> &str {
        self.header(header::SEC_WEBSOCKET_PROTOCOL)
    }

    /// Accepts WebSocket with this protocol, and runs the script.
    pub(crate) fn websocket<F>(
        &self,
        protocol: &str,
        script: impl FnOnce(Socket) -> F + Send + 'static,
    ) -> ScriptedAnswer
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let key = self.header(header::SEC_WEBSOCKET_KEY);
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes()))
            .header(header::SEC_WEBSOCKET_PROTOCOL, protocol)
            .body(())
            .unwrap();
        ScriptedAnswer::Switch(
            response,
            Box::new(|io| {
                Box::pin(async move {
                    script(WebSocketStream::from_raw_socket(io, Role::Server, None).await).await;
                })
            }),
        )
    }
}

/// An error status of an API server.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> ScriptedAnswer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    ScriptedAnswer::Text(code, status.to_string())
}

pub(crate) fn json(value: &Value) -> ScriptedAnswer {
    ScriptedAnswer::Text(200, value.to_string())
}

/// Lower pods are in the namespace `lower` and have the suffix `-x`.
struct SuffixedNames;

impl PodLocator for SuffixedNames {
    fn locate(&self, pod: &PodRef) -> Result<(String, String)> {
        if &*pod.name == "absent" {
            return Err(Error::not_found(format!("find the lower pod of {pod}")));
        }
        Ok(("lower".to_owned(), format!("{}-x", pod.name)))
    }
}

pub(crate) fn pod() -> PodRef {
    PodRef::new("upper", "web", "u-1")
}

/// Waits with a timeout.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it happens within the deadline")
}
