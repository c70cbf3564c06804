//! Plain HTTP without authentication, with the same limits on time and number.

use std::io;

use axum::{Router, body::Body};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpListener;
use tower::ServiceExt as _;
use tracing::debug;
use vk_supervisor::Supervisor;

use super::{ConnectionLimits, UnauthorizedLimiter, accept, keep_alive, serve_http1};

/// Serves a router over plain HTTP/1.1 until the supervisor stops. No caller is known, so all count as unauthorized: one
/// connection too many closes the oldest.
pub async fn serve_plain(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    supervisor: Supervisor,
) -> io::Result<()> {
    let limiter = UnauthorizedLimiter::new(limits.unauthorized, Counter::default());
    accept(listener, limits.connections, &supervisor, |stream, address| {
        let (router, guard, supervisor) = (router.clone(), limiter.register(), supervisor.clone());
        async move {
            keep_alive(&stream);
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                router.clone().oneshot(request.map(Body::new))
            });
            tokio::select! {
                ended = serve_http1(TokioIo::new(stream), service, limits.head, &supervisor) => {
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
