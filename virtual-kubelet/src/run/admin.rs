//! The process' own endpoints: `/healthz`, `/readyz` and `/metrics`. Plain HTTP, and nothing secret in it.

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::registry::Registry as Counters;
use tokio::net::TcpListener;
use tracing::info;
use vk_supervisor::Supervisor;

use super::fleet::Fleet;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until the supervisor stops. There is no fleet before the API server and the backends have answered.
pub(super) async fn serve(
    listener: TcpListener,
    counters: Arc<Counters>,
    fleet: Arc<OnceLock<Fleet>>,
    supervisor: Supervisor,
) -> std::io::Result<()> {
    info!(address = %listener.local_addr()?, "serving /healthz, /readyz and /metrics");
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(fleet.get())))
        .route("/metrics", get(async move || metrics(&counters)));
    let stopping = async move { supervisor.stopping().await };
    axum::serve(listener, router).with_graceful_shutdown(stopping).await
}

/// Ready when every node was registered, here or by another replica: one that stands by does its work, and a roll-out that
/// waited for it to lead would wait for ever. A node whose provider fails is registered and NotReady, which is for the
/// cluster to see and no reason to take this process out of service.
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

fn metrics(counters: &Counters) -> impl IntoResponse + use<> {
    match exposition(counters) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, OPENMETRICS)], text),
        Err(error) => {
            let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
            (StatusCode::INTERNAL_SERVER_ERROR, plain, format!("cannot write metrics: {error}\n"))
        }
    }
}

/// All counters, in the text form of OpenMetrics.
pub(super) fn exposition(counters: &Counters) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, counters)?;
    Ok(text)
}
