//! A server that answers questions like a node, and records what it gets.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use vk_provider::placement::{PLACEMENT_ANNOTATION, SERVING_KEY_ANNOTATION};

/// A certificate, and a key that should be its own.
#[derive(Clone)]
pub(crate) struct ServingPair {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

// === impl ServingPair ===

impl ServingPair {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        Self { certificate: certificate.der().clone(), key: key.serialize_der() }
    }

    pub(crate) fn with_key_of(&self, other: &Self) -> Self {
        Self { certificate: self.certificate.clone(), key: other.key.clone() }
    }

    pub(crate) fn fingerprint(&self) -> String {
        vk_kube::key_fingerprint(&self.certificate).unwrap()
    }

    /// The pair, even if it does not match.
    fn certified_key(&self) -> Arc<CertifiedKey> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).unwrap();
        Arc::new(CertifiedKey::new(vec![self.certificate.clone()], key))
    }
}

/// A server on loopback. It stops when it is dropped.
pub(crate) struct FakeNode {
    port: u16,
    state: Arc<State>,
    _server: JoinSet<()>,
}

struct State {
    pair: Mutex<ServingPair>,
    /// The answer to everything; `None` if there is none.
    answer: Option<(StatusCode, Bytes)>,
    /// Tokens that are answered with 401.
    rejected: Mutex<Vec<String>>,
    /// Method, path and token of each request.
    requests: Mutex<Vec<String>>,
    bodies: Mutex<Vec<Bytes>>,
    connections: AtomicUsize,
}

// === impl FakeNode ===

impl FakeNode {
    pub(crate) async fn start(pair: ServingPair, code: StatusCode, body: &str) -> Self {
        Self::serve(pair, Some((code, Bytes::from(body.to_owned())))).await
    }

    /// A server that takes requests and does not answer.
    pub(crate) async fn start_silent(pair: ServingPair) -> Self {
        Self::serve(pair, None).await
    }

    /// A node whose server accepts connections and says nothing.
    pub(crate) async fn without_tls() -> (Node, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (object(listener.local_addr().unwrap().port(), &ServingPair::new().fingerprint()), listener)
    }

    async fn serve(pair: ServingPair, answer: Option<(StatusCode, Bytes)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            pair: Mutex::new(pair),
            answer,
            rejected: Mutex::default(),
            requests: Mutex::default(),
            bodies: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&state) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (mut server, shared) = (JoinSet::new(), Arc::clone(&state));
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve_connection(acceptor.clone(), stream, Arc::clone(&shared)));
            }
        });
        Self { port, state, _server: server }
    }

    /// The Node object with the key that is served.
    pub(crate) fn object(&self) -> Node {
        self.object_with_key(&self.state.pair.lock().fingerprint())
    }

    pub(crate) fn object_with_key(&self, fingerprint: &str) -> Node {
        object(self.port, fingerprint)
    }

    /// Serves new connections with this pair.
    pub(crate) fn replace_key(&self, pair: ServingPair) {
        *self.state.pair.lock() = pair;
    }

    /// Answers requests with this token with 401 from now on.
    pub(crate) fn reject(&self, token: String) {
        self.state.rejected.lock().push(token);
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().clone()
    }

    /// The bodies of the requests.
    pub(crate) fn bodies(&self) -> Vec<Bytes> {
        self.state.bodies.lock().clone()
    }

    /// The tokens of the requests.
    pub(crate) fn tokens(&self) -> Vec<String> {
        let requests = self.requests().into_iter();
        requests
            .map(|request| request.strip_prefix("POST /placement/fit Bearer ").unwrap().to_owned())
            .collect()
    }

    /// The number of connections with a finished handshake.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }
}

// === impl State ===

impl ResolvesServerCert for State {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.pair.lock().certified_key())
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

async fn serve_connection(acceptor: TlsAcceptor, stream: TcpStream, state: Arc<State>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    state.connections.fetch_add(1, Ordering::Relaxed);
    let answer = service_fn(move |request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(respond(&state, request).await) }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answer);
    // The client may close it at any time.
    drop(connection.await);
}

async fn respond(state: &State, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let token = request.headers().get(header::AUTHORIZATION);
    let token = token.map_or("", |token| token.to_str().unwrap()).to_owned();
    let line = format!("{} {} {token}", request.method(), request.uri().path());
    state.requests.lock().push(line);
    let is_rejected = token.strip_prefix("Bearer ").is_some_and(|token| {
        let rejected = state.rejected.lock();
        rejected.iter().any(|rejected| rejected == token)
    });
    let body = request.into_body().collect().await.unwrap().to_bytes();
    state.bodies.lock().push(body);
    let Some((mut code, body)) = state.answer.clone() else { return std::future::pending().await };
    if is_rejected {
        code = StatusCode::UNAUTHORIZED;
    }
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(header::LOCATION, "https://127.0.0.1:1/elsewhere".parse().unwrap());
    response
}

fn object(port: u16, fingerprint: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {
            "name": "vk",
            "annotations": {PLACEMENT_ANNOTATION: "fit", SERVING_KEY_ANNOTATION: fingerprint},
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }))
    .unwrap()
}
