//! HTTP connections to one node.

use std::{error::Error, io, net::SocketAddr, sync::Arc};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{CertificateError, client::ResolvesClientCert};
use tower::{BoxError, ServiceExt as _, util::BoxCloneSyncService};
use vk_provider::placement::FitAnswer;

use super::{AskError, AskLimits, IDLE, answer, endpoint::Endpoint, pinned_key, query_text::QueryBody};

/// Bytes read of an error response.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// Connections to one node. Clones share them.
#[derive(Clone)]
pub(super) struct NodeTransport {
    client: BoxCloneSyncService<Request<QueryBody>, Response<Incoming>, hyper_util::client::legacy::Error>,
}

// === impl NodeTransport ===

impl NodeTransport {
    /// Connects with the first request.
    pub(super) fn new(
        endpoint: &Endpoint,
        certificate: Option<Arc<dyn ResolvesClientCert>>,
        limits: &AskLimits,
    ) -> Result<Self, AskError> {
        let tls = pinned_key::config(&endpoint.key, certificate).map_err(|error| AskError::Unreachable {
            address: endpoint.address,
            reason: error.to_string(),
        })?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http2()
            .wrap_connector(http);
        let connect = limits.connect;
        let connector = https.map_future(move |connecting| {
            Box::pin(async move {
                match tokio::time::timeout(connect, connecting).await {
                    Ok(connected) => connected,
                    Err(_) => Err(BoxError::from(format!("not connected within {connect:?}"))),
                }
            })
        });
        let client = HyperClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http2_only(true)
            .build::<_, QueryBody>(connector);
        Ok(Self { client: BoxCloneSyncService::new(client) })
    }

    /// Sends a query to this address, which the errors name, and reads the answer if it has at most so many bytes.
    pub(super) async fn send(
        self,
        request: Request<QueryBody>,
        address: SocketAddr,
        max_bytes: usize,
    ) -> Result<FitAnswer, AskError> {
        let response = self.client.oneshot(request).await.map_err(|error| {
            if is_wrong_key(&error) {
                return AskError::WrongKey { address };
            }
            AskError::Unreachable { address, reason: innermost(&error) }
        })?;
        let code = response.status();
        if code != StatusCode::OK {
            return Err(rejection(code, response.into_body()).await);
        }
        let body = Limited::new(response.into_body(), max_bytes).collect().await;
        let body = body.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                return AskError::Invalid(format!("it has more than {max_bytes} bytes"));
            }
            AskError::Unreachable { address, reason: error.to_string() }
        })?;
        answer::read(body.to_bytes()).await
    }
}

async fn rejection(code: StatusCode, body: Incoming) -> AskError {
    // The code is enough if there is no message.
    let body = Limited::new(body, MAX_ERROR_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let message = String::from_utf8_lossy(&body).trim().replace('\n', " ");
    match code {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => AskError::Forbidden { code, message },
        _ => AskError::Rejected { code, message },
    }
}

/// Whether the handshake failed because the server has another key.
fn is_wrong_key(error: &(dyn Error + 'static)) -> bool {
    let wrong = rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<rustls::Error>() == Some(&wrong) {
            return true;
        }
        cause = source(error);
    }
    false
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(inner) = source(error) {
        error = inner;
    }
    error.to_string()
}

/// The cause of an error. An I/O error that wraps another one hides it from [`Error::source`].
fn source<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}
