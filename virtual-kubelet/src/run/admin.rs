//! The admin endpoints of the process: `/healthz`, `/readyz` and `/metrics`, over plain HTTP. Everybody who reaches the port may
//! read them, so they name nodes, but no pods, namespaces or other objects of users.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tracing::info;
use vk_server::ConnectionLimits;
use vk_supervisor::Supervisor;

use super::{exposition::Exposition, fleet::Fleet};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Concurrent connections; one more closes the oldest. Probes and scrapers need a few.
const CONNECTIONS: usize = 100;
/// Time limit of a request head, and of an idle connection.
const HEAD: Duration = Duration::from_secs(10);

/// Serves until the supervisor stops. The fleet is set after the API server and the backends have answered.
pub(super) async fn serve(
    listener: TcpListener,
    exposition: Exposition,
    fleet: Arc<OnceLock<Fleet>>,
    supervisor: Supervisor,
) -> std::io::Result<()> {
    info!(address = %listener.local_addr()?, "serving /healthz, /readyz and /metrics");
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(fleet.get())))
        .route("/metrics", get(async move || metrics(&exposition)));
    let limits = ConnectionLimits {
        connections: 2 * CONNECTIONS,
        unauthorized: CONNECTIONS,
        head: HEAD,
        ..ConnectionLimits::default()
    };
    vk_server::serve_plain(listener, router, limits, supervisor).await
}

/// Ready when every node is registered, by this or another replica: a rollout that waited for a standby replica to lead would
/// never finish. A node with a failing provider is registered but NotReady; that is no reason to take this process out of
/// service.
fn ready(fleet: Option<&Fleet>) -> impl IntoResponse + use<> {
    let Some(fleet) = fleet else {
        return (StatusCode::SERVICE_UNAVAILABLE, "starting\n".to_owned());
    };
    let missing = fleet.unregistered();
    if missing.is_empty() {
        (StatusCode::OK, format!("ok{}\n", standby_note(fleet.on_standby())))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not registered yet: {}\n", missing.join(", ")))
    }
}

fn standby_note(nodes: usize) -> String {
    if nodes == 0 { String::new() } else { format!(", standing by for {nodes} of the nodes") }
}

fn metrics(exposition: &Exposition) -> impl IntoResponse + use<> {
    match exposition.encode() {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, OPENMETRICS)], text),
        Err(error) => {
            let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
            (StatusCode::INTERNAL_SERVER_ERROR, plain, format!("encode metrics: {error}\n"))
        }
    }
}
