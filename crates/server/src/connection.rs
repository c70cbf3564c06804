//! Connections: accepted, taken through the TLS handshake, and served; each within limits of time and number.

mod lobby;

use std::{io, sync::Arc, time::Duration};

use hyper::{body::Incoming, service::service_fn};
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

use self::lobby::{Guest, Lobby};
use crate::{Api, routes};

/// How long the system is left alone when it has no room for another connection.
const NO_ROOM: Duration = Duration::from_millis(100);
/// How long a peer may be silent before the system asks whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// What the head of a request may take. A token has about a thousand bytes, and a command line may have many.
const LARGEST_HEAD: usize = 256 * 1024;
/// How long open requests may go on when the node stops: those that follow a log have no end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Requests at a time on one HTTP/2 connection.
const STREAMS: u32 = 250;

/// What one node's listener bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; beyond that new ones wait in the system's queue.
    pub connections: usize,
    /// Connections on which no known caller has come yet; beyond that the oldest of them is closed.
    pub strangers: usize,
    /// How long the TLS handshake may take.
    pub handshake: Duration,
    /// How long the head of a request may take, and how long an idle connection is kept.
    pub head: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            strangers: 1_000,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
        }
    }
}

/// The other end of a connection, as requests find it among their extensions.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) chain: Arc<[CertificateDer<'static>]>,
    guest: Arc<Guest>,
}

// === impl Peer ===

impl Peer {
    /// A known caller has come: the connection may stay.
    pub(crate) fn admit(&self) {
        self.guest.admit();
    }
}

/// Serves a node's API on a listener until the node's supervisor stops; open requests then have a moment to end.
pub async fn serve(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    api: Arc<Api>,
    limits: Limits,
) -> io::Result<()> {
    let (metrics, supervisor) = (api.metrics.clone(), api.node_supervisor.clone());
    info!(address = %listener.local_addr()?, "serving the kubelet API");
    let room = Arc::new(Semaphore::new(limits.connections));
    let lobby = Lobby::new(limits.strangers, metrics.clone());
    let door = Door { acceptor: TlsAcceptor::from(config), api, limits };
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|accepted| (accepted, place))
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok(((stream, address), place)) => {
                    let (door, guest, open) = (door.clone(), lobby.enter(), metrics.connections.clone());
                    connections.spawn(async move {
                        open.inc();
                        if let Err(error) = door.pass(stream, guest).await {
                            debug!(%address, error, "a connection to the kubelet API ended");
                        }
                        open.dec();
                        drop(place);
                    });
                }
                // The peer's own fault, and no reason to wait.
                Err(error) if is_peers(&error) => debug!(%error, "a connection was gone before it was accepted"),
                Err(error) => {
                    warn!(%error, "cannot accept a connection: waiting");
                    tokio::time::sleep(NO_ROOM).await;
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

fn is_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The way of a connection.
#[derive(Clone)]
struct Door {
    acceptor: TlsAcceptor,
    api: Arc<Api>,
    limits: Limits,
}

// === impl Door ===

impl Door {
    async fn pass(&self, stream: TcpStream, guest: Guest) -> Result<(), String> {
        keep_alive(&stream);
        let guest = Arc::new(guest);
        let served = async {
            let handshake = tokio::time::timeout(self.limits.handshake, self.acceptor.accept(stream));
            let stream = handshake
                .await
                .map_err(|_| "the TLS handshake took too long".to_owned())?
                .map_err(|error| format!("TLS handshake: {error}"))?;
            self.converse(stream, Arc::clone(&guest)).await
        };
        tokio::select! {
            ended = served => ended,
            () = guest.evicted() => Err("closed: too many connections without a known caller".to_owned()),
        }
    }

    async fn converse(&self, stream: TlsStream<TcpStream>, guest: Arc<Guest>) -> Result<(), String> {
        let (_, session) = stream.get_ref();
        let chain = session.peer_certificates().unwrap_or_default();
        let chain: Arc<[_]> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let two = session.alpn_protocol() == Some(b"h2");
        let peer = Peer { chain, guest };
        let service = service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(Arc::clone(&self.api));
            routes::router().oneshot(request.map(axum::body::Body::new))
        });
        let io = TokioIo::new(stream);
        // By what was agreed in the handshake, and not by looking at the first bytes: there is no time limit on those.
        if two {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(u32::try_from(LARGEST_HEAD).unwrap_or(u32::MAX))
                .keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE);
            let mut connection = std::pin::pin!(builder.serve_connection(io, service));
            tokio::select! {
                ended = &mut connection => return told(ended),
                () = self.api.node_supervisor.stopping() => connection.as_mut().graceful_shutdown(),
            }
            tokio::time::timeout(LAST_WORDS, connection).await.map_or(Ok(()), told)
        } else {
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(self.limits.head).max_buf_size(LARGEST_HEAD);
            let mut connection = std::pin::pin!(builder.serve_connection(io, service).with_upgrades());
            tokio::select! {
                ended = &mut connection => return told(ended),
                () = self.api.node_supervisor.stopping() => connection.as_mut().graceful_shutdown(),
            }
            tokio::time::timeout(LAST_WORDS, connection).await.map_or(Ok(()), told)
        }
    }
}

fn told(ended: hyper::Result<()>) -> Result<(), String> {
    ended.map_err(|error| error.to_string())
}

/// A peer that vanished without a word is noticed in some minutes, and small answers are sent at once.
fn keep_alive(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let set =
        stream.set_nodelay(true).and_then(|()| socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive));
    if let Err(error) = set {
        debug!(%error, "cannot set options of a connection");
    }
}
