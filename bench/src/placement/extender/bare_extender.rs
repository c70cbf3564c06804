//! An extender that passes everything: what kube-scheduler can do with any extender at all. The same TLS and HTTP server as ours.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use clap::Args;
use http::{StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use vk_server::{
    ConnectionLimits, serve_plain, serve_tls,
    tls::{self, ServingCertificate, certificate_files::CertificateFiles},
};
use vk_supervisor::Supervisor;

/// The metric with the number of calls.
pub(super) const FILTER_CALLS: &str = "bare_extender_filter_calls";

#[derive(Debug, Args)]
pub(crate) struct BareExtender {
    #[arg(long)]
    port: u16,
    /// Where the number of calls is served, without TLS
    #[arg(long)]
    metrics_port: u16,
    #[arg(long)]
    certificate: PathBuf,
    #[arg(long)]
    key: PathBuf,
}

/// The arguments of `filter` and `prioritize`, without the pod.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NodeNames {
    node_names: Vec<String>,
}

/// The arguments of `preempt`, without the pod.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Victims {
    node_name_to_meta_victims: Value,
}

impl BareExtender {
    /// Serves until the process is killed.
    pub(crate) async fn serve(self) -> anyhow::Result<()> {
        let files = CertificateFiles { cert: self.certificate, key: self.key };
        let tls = tls::server_config(ServingCertificate::new(files.read()?))?;
        let calls = Arc::new(AtomicU64::new(0));
        let router = Router::new()
            .route("/filter", post(filter))
            .route("/prioritize", post(prioritize))
            .route("/preempt", post(preempt))
            .with_state(Arc::clone(&calls));
        let metrics = get(async move || format!("{FILTER_CALLS} {}\n", calls.load(Ordering::Relaxed)));
        let metrics = Router::new().route("/metrics", metrics);
        let (limits, supervisor) = (ConnectionLimits::default(), Supervisor::new());
        tokio::try_join!(
            serve_tls(listen(self.port).await?, tls, router, limits, supervisor.clone()),
            serve_plain(listen(self.metrics_port).await?, metrics, limits, supervisor),
        )?;
        Ok(())
    }
}

async fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))
}

async fn filter(State(calls): State<Arc<AtomicU64>>, body: Bytes) -> Response {
    calls.fetch_add(1, Ordering::Relaxed);
    answer::<NodeNames>(&body, |NodeNames { node_names }| json!({"NodeNames": node_names}))
}

async fn prioritize(body: Bytes) -> Response {
    answer::<NodeNames>(&body, |NodeNames { node_names }| {
        node_names.into_iter().map(|name| json!({"Host": name, "Score": 0})).collect()
    })
}

async fn preempt(body: Bytes) -> Response {
    answer::<Victims>(&body, |victims| json!({"NodeNameToMetaVictims": victims.node_name_to_meta_victims}))
}

fn answer<T: for<'de> Deserialize<'de>>(body: &[u8], answer: impl FnOnce(T) -> Value) -> Response {
    match serde_json::from_slice(body) {
        Ok(arguments) => {
            ([(header::CONTENT_TYPE, "application/json")], answer(arguments).to_string()).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
