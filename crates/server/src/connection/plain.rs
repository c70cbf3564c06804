//! HTTP without authentication of requests, plain or over TLS, with the same limits on time and number.

use std::{io, sync::Arc};

use axum::{Router, body::Body};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::metrics::counter::Counter;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::{debug, warn};
use vk_supervisor::Supervisor;

use super::{ConnectionLimits, UnauthorizedLimiter, accept, accept_tls, keep_alive, serve_http1};
use crate::log_limit::LogLimit;

/// Serves a router over plain HTTP/1.1 until the supervisor stops. No caller is known, so all count as unauthorized: one
/// connection too many closes the oldest.
pub async fn serve_plain(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    supervisor: Supervisor,
) -> io::Result<()> {
    serve_router(listener, router, limits, supervisor, |stream| async move {
        Some(Accepted { stream, has_certificate: false })
    })
    .await
}

/// Serves a router over TLS, otherwise like [`serve_plain`]. The configuration is [`tls::server_config`](crate::tls::server_config), or
/// [`tls::server_config_for`](crate::tls::server_config_for): then clients whose certificate was accepted do not count as unauthorized.
pub async fn serve_tls(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    router: Router,
    limits: ConnectionLimits,
    supervisor: Supervisor,
) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(config);
    // Any client can cause failed handshakes.
    let failures = Arc::new(LogLimit::default());
    serve_router(listener, router, limits, supervisor, move |stream| {
        let (acceptor, failures) = (acceptor.clone(), Arc::clone(&failures));
        async move {
            let address = stream.peer_addr().ok();
            let accepted = accept_tls(&acceptor, stream, limits.handshake).await;
            let accepted = accepted.inspect_err(|reason| {
                if let Some(omitted) = failures.allow() {
                    warn!(?address, reason, omitted, "TLS handshake failed");
                }
            });
            accepted.ok().map(|stream| {
                // A certificate is there only if one was requested, and the handshake succeeds only if it was verified.
                let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                Accepted { stream, has_certificate }
            })
        }
    })
    .await
}

/// A connection after its handshake.
struct Accepted<I> {
    stream: I,
    has_certificate: bool,
}

async fn serve_router<H, F, I>(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    supervisor: Supervisor,
    handshake: H,
) -> io::Result<()>
where
    H: Fn(TcpStream) -> F,
    F: Future<Output = Option<Accepted<I>>> + Send + 'static,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limiter = UnauthorizedLimiter::new(limits.unauthorized, Counter::default());
    accept(listener, limits.connections, &supervisor, |stream, address| {
        keep_alive(&stream);
        let (router, guard, supervisor) = (router.clone(), limiter.register(), supervisor.clone());
        let handshake = handshake(stream);
        async move {
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                router.clone().oneshot(request.map(Body::new))
            });
            let served = async {
                match handshake.await {
                    Some(Accepted { stream, has_certificate }) => {
                        if has_certificate {
                            guard.release();
                        }
                        serve_http1(TokioIo::new(stream), service, limits.head, &supervisor).await
                    }
                    None => Ok(()),
                }
            };
            tokio::select! {
                ended = served => {
                    if let Err(error) = ended {
                        debug!(%address, error, "connection ended");
                    }
                }
                () = guard.evicted() => debug!(%address, "closed: too many connections"),
            }
        }
    })
    .await
}
