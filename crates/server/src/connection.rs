//! Accepts connections, performs TLS handshakes and serves HTTP, with limits on time and number.

mod plain;
mod unauthorized;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{
    body::{Body, Incoming},
    rt::{Read, Write},
    service::{HttpService, service_fn},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tower::ServiceExt as _;
use tracing::{debug, info, warn};
use vk_supervisor::Supervisor;

pub use self::plain::{serve_plain, serve_tls};
use self::unauthorized::{UnauthorizedGuard, UnauthorizedLimiter};
use crate::{Api, log_limit::LogLimit, routes};

/// Pause when the system cannot accept a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long a peer may be silent before the kernel probes it.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Limit of a request head in bytes. A token has about a thousand bytes, and a command line may be long.
const MAX_HEAD: usize = 256 * 1024;
/// How long open requests may continue when the node stops: following a log never ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// Concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 250;

/// Limits of one node's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Concurrent connections; more wait in the kernel's queue.
    pub connections: usize,
    /// Connections without an authorized request; beyond this the oldest of them is closed.
    pub unauthorized: usize,
    /// Time limit of the TLS handshake.
    pub handshake: Duration,
    /// Time limit of a request head, and of an idle connection.
    pub head: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            unauthorized: unauthorized::DEFAULT_LIMIT,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
        }
    }
}

/// The client's side of a connection, in the extensions of its requests.
#[derive(Clone)]
pub(crate) struct ClientConnection {
    pub(crate) chain: Arc<[CertificateDer<'static>]>,
    guard: Arc<UnauthorizedGuard>,
}

// === impl ClientConnection ===

impl ClientConnection {
    /// Records that a request was authorized: the connection may stay.
    pub(crate) fn mark_authorized(&self) {
        self.guard.release();
    }
}

/// Serves a node's API on a listener until the node's supervisor stops. Open requests then have a moment to finish.
pub async fn serve(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    api: Arc<Api>,
    limits: ConnectionLimits,
) -> io::Result<()> {
    let (metrics, supervisor) = (api.metrics.clone(), api.node_supervisor.clone());
    info!(address = %listener.local_addr()?, "serving the kubelet API");
    let limiter = UnauthorizedLimiter::new(limits.unauthorized, metrics.evicted.clone());
    let failures = Arc::new(LogLimit::default());
    let handler = ConnectionHandler { acceptor: TlsAcceptor::from(config), api, limits, failures };
    accept(listener, limits.connections, &supervisor, |stream, address| {
        let (handler, guard, open) = (handler.clone(), limiter.register(), metrics.connections.clone());
        async move {
            open.inc();
            if let Err(error) = handler.handle(stream, address, guard).await {
                debug!(%address, error, "kubelet API connection ended");
            }
            open.dec();
        }
    })
    .await
}

/// Accepts connections until the supervisor stops, then waits for those that are open.
async fn accept<F>(
    listener: TcpListener,
    limit: usize,
    supervisor: &Supervisor,
    handle: impl Fn(TcpStream, SocketAddr) -> F,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(limit));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|accepted| (accepted, permit))
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok(((stream, address), permit)) => {
                    let handled = handle(stream, address);
                    connections.spawn(async move {
                        handled.await;
                        drop(permit);
                    });
                }
                // The client's fault, and no reason to wait.
                Err(error) if is_client_fault(&error) => debug!(%error, "connection aborted before it was accepted"),
                Err(error) => {
                    warn!(%error, "cannot accept a connection: will retry");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = supervisor.stopping() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

fn is_client_fault(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Handles one connection.
#[derive(Clone)]
struct ConnectionHandler {
    acceptor: TlsAcceptor,
    api: Arc<Api>,
    limits: ConnectionLimits,
    /// Limits the log lines about failed handshakes, which any client can cause.
    failures: Arc<LogLimit>,
}

// === impl ConnectionHandler ===

impl ConnectionHandler {
    async fn handle(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        guard: UnauthorizedGuard,
    ) -> Result<(), String> {
        keep_alive(&stream);
        let guard = Arc::new(guard);
        let served = async {
            match accept_tls(&self.acceptor, stream, self.limits.handshake).await {
                Ok(stream) => self.serve_http(stream, Arc::clone(&guard)).await,
                Err(reason) => {
                    if let Some(omitted) = self.failures.allow() {
                        warn!(node = self.api.node, %address, reason, omitted, "TLS handshake failed");
                    }
                    Ok(())
                }
            }
        };
        tokio::select! {
            ended = served => ended,
            () = guard.evicted() => Err("closed: too many connections without an authorized request".to_owned()),
        }
    }

    async fn serve_http(
        &self,
        stream: TlsStream<TcpStream>,
        guard: Arc<UnauthorizedGuard>,
    ) -> Result<(), String> {
        let (_, session) = stream.get_ref();
        let chain = session.peer_certificates().unwrap_or_default();
        let chain: Arc<[_]> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let peer = ClientConnection { chain, guard };
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(Arc::clone(&self.api));
            routes::router().oneshot(request.map(axum::body::Body::new))
        });
        let io = TokioIo::new(stream);
        // Decided by ALPN, not by the first bytes: reading those has no time limit.
        if is_http2 {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
                .keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE);
            let mut connection = std::pin::pin!(builder.serve_connection(io, service));
            tokio::select! {
                ended = &mut connection => return with_message(ended),
                () = self.api.node_supervisor.stopping() => connection.as_mut().graceful_shutdown(),
            }
            tokio::time::timeout(SHUTDOWN_GRACE, connection).await.map_or(Ok(()), with_message)
        } else {
            serve_http1(io, service, self.limits.head, &self.api.node_supervisor).await
        }
    }
}

/// Performs the TLS handshake.
async fn accept_tls(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    limit: Duration,
) -> Result<TlsStream<TcpStream>, String> {
    match tokio::time::timeout(limit, acceptor.accept(stream)).await {
        Ok(accepted) => accepted.map_err(|error| error.to_string()),
        Err(_) => Err(format!("not finished after {limit:?}")),
    }
}

/// Serves HTTP/1.1 until the client closes the connection, is too slow, or the supervisor stops.
async fn serve_http1<I, S>(io: I, service: S, head: Duration, supervisor: &Supervisor) -> Result<(), String>
where
    I: Read + Write + Unpin + Send + 'static,
    S: HttpService<Incoming, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    S::ResBody: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static,
{
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(MAX_HEAD);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service).with_upgrades());
    tokio::select! {
        ended = &mut connection => return with_message(ended),
        () = supervisor.stopping() => connection.as_mut().graceful_shutdown(),
    }
    tokio::time::timeout(SHUTDOWN_GRACE, connection).await.map_or(Ok(()), with_message)
}

fn with_message(ended: hyper::Result<()>) -> Result<(), String> {
    ended.map_err(|error| error.to_string())
}

/// Detects vanished peers within minutes, and sends small responses at once.
fn keep_alive(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let set =
        stream.set_nodelay(true).and_then(|()| socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive));
    if let Err(error) = set {
        debug!(%error, "cannot set socket options");
    }
}
