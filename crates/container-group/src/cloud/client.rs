//! The HTTP client for the APIs of clouds.
//!
//! A server is not trusted to answer, to answer in time, or to be the one that was meant: connecting, the first byte and the whole
//! answer have deadlines, the size of an answer is bounded, and redirects are not followed, because they would take signed
//! requests elsewhere. HTTP/1.1 only: a lost connection then concerns one call.

mod connector;
mod endpoint;
mod response;
#[cfg(test)]
pub(crate) mod tests;

use std::{error::Error as StdError, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::{
    client::legacy::Client as HyperClient,
    rt::{TokioExecutor, TokioTimer},
};
use rustls::RootCertStore;
use tokio::time::{Instant, timeout_at};
use tower::{ServiceExt as _, util::BoxCloneSyncService};
use tracing::debug;
use vk_provider::ability::BoxDuplex;

use self::connector::Connector;
pub use self::{
    endpoint::{Endpoint, InvalidEndpoint, PlainHttp},
    response::Response,
};
use super::{
    error::{Class, Error, Result},
    request::{Effect, Header, Request},
};

const USER_AGENT: &str = concat!("virtual-kubelet/", env!("CARGO_PKG_VERSION"));
/// Idle connections are closed before the gateways of clouds do it.
const IDLE: Duration = Duration::from_secs(20);

/// Bounds of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the connection, with DNS and TLS.
    pub connect: Duration,
    /// From the connection to the first byte of the answer.
    pub first_byte: Duration,
    /// For the whole call.
    pub total: Duration,
    /// Size of an answer.
    pub response_bytes: usize,
}

/// Sends requests. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: BoxCloneSyncService<
        http::Request<Full<Bytes>>,
        http::Response<Incoming>,
        hyper_util::client::legacy::Error,
    >,
    connector: Connector,
    limits: Limits,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(20),
            total: Duration::from_secs(40),
            response_bytes: 8 << 20,
        }
    }
}

// === impl Client ===

impl Client {
    /// A client that trusts these certificates, or those of the host.
    pub fn new(limits: Limits, roots: Option<Arc<RootCertStore>>) -> Self {
        let connector = connector::new(limits.connect, roots);
        Self::with_connector(limits, connector)
    }

    /// A client whose connections are what `dial` returns: for tests on a paused clock, which cannot wait for sockets.
    #[cfg(any(test, feature = "fake"))]
    pub fn over(limits: Limits, dial: impl Fn() -> BoxDuplex + Clone + Send + Sync + 'static) -> Self {
        Self::with_connector(limits, connector::over(dial))
    }

    fn with_connector(limits: Limits, connector: Connector) -> Self {
        let http = HyperClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build::<_, Full<Bytes>>(connector.clone());
        Self { http: BoxCloneSyncService::new(http), connector, limits }
    }

    /// The same connections with other limits. The time to connect stays.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self { http: self.http.clone(), connector: self.connector.clone(), limits }
    }

    /// Opens a connection of its own, for a protocol that is not request and answer. `operation` names it in errors.
    pub async fn connect(&self, endpoint: &Endpoint, operation: &str) -> Result<BoxDuplex> {
        let failed = |text| Error::without_answer(operation, Effect::Repeatable, text);
        let uri: Uri = format!("{endpoint}/").parse().map_err(|_| {
            Error::new(Class::Invalid { field: None }, operation, "the host of the URL cannot be used")
        })?;
        match self.connector.clone().oneshot(uri).await {
            Ok(connection) => Ok(connection.into_inner()),
            Err(error) => Err(failed(connector::explain(endpoint, &*error))),
        }
    }

    /// Sends a request, and reads the whole answer whatever its status is. Dropping the future closes the connection.
    pub async fn send(&self, endpoint: &Endpoint, request: &Request) -> Result<Response> {
        let started = Instant::now();
        let sent = self.attempt(endpoint, request, started).await;
        let (operation, elapsed) = (request.operation(), started.elapsed());
        match &sent {
            Ok(response) => {
                let status = response.status().as_u16();
                debug!(%endpoint, operation, ?elapsed, status, "called the cloud");
            }
            Err(error) => debug!(%endpoint, operation, ?elapsed, %error, "a call to the cloud failed"),
        }
        sent
    }

    async fn attempt(&self, endpoint: &Endpoint, request: &Request, started: Instant) -> Result<Response> {
        let limits = &self.limits;
        let exchange = Exchange { endpoint, request, limits };
        let wire = exchange.encode()?;
        // The connector has its own deadline within this one.
        let first_byte = started + limits.total.min(limits.connect + limits.first_byte);
        let answer = match timeout_at(first_byte, self.http.clone().oneshot(wire)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(exchange.failed(&error)),
            Err(_) => {
                let limit = first_byte - started;
                return Err(exchange.no_answer(format!("{endpoint} did not answer within {limit:?}")));
            }
        };
        let (head, body) = answer.into_parts();
        let Ok(body) = timeout_at(started + limits.total, exchange.read(body)).await else {
            let text = format!("the answer of {endpoint} was not complete within {:?}", limits.total);
            return Err(exchange.no_answer(text));
        };
        Ok(Response::new(endpoint.clone(), request, &head, body?))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// One request on its way.
struct Exchange<'a> {
    endpoint: &'a Endpoint,
    request: &'a Request,
    limits: &'a Limits,
}

// === impl Exchange ===

impl Exchange<'_> {
    /// The request as HTTP. Values that HTTP cannot carry are errors which do not show them.
    fn encode(&self) -> Result<http::Request<Full<Bytes>>> {
        let (endpoint, request) = (self.endpoint, self.request);
        let error = |class, what: &str| {
            Error::new(class, request.operation(), format!("{what} cannot be sent over HTTP"))
        };
        let invalid = |what| error(Class::Invalid { field: None }, what);
        let (path, query) = (request.encoded_path(), request.encoded_query());
        let uri =
            if query.is_empty() { format!("{endpoint}{path}") } else { format!("{endpoint}{path}?{query}") };
        let mut wire = http::Request::new(Full::new(request.payload().clone()));
        *wire.method_mut() = request.method().clone();
        *wire.uri_mut() = uri.parse().map_err(|_| invalid("the URL of the request"))?;
        let headers = wire.headers_mut();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let host = HeaderValue::from_str(&endpoint.host_header())
            .map_err(|_| invalid("the host of the endpoint"))?;
        headers.insert(header::HOST, host);
        for Header { name, value } in request.headers().iter().filter(|header| header.name != "host") {
            let header =
                HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("the name of a header"))?;
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                // What varies in headers comes from the credentials.
                error(Class::Auth, &format!("check the credentials: the value of the header {name}"))
            })?;
            value.set_sensitive(true);
            headers.append(header, value);
        }
        Ok(wire)
    }

    async fn read(&self, mut body: Incoming) -> Result<Bytes> {
        let limit = self.limits.response_bytes;
        let too_large = || {
            let text = format!("the answer of {} is larger than {limit} bytes", self.endpoint);
            self.no_answer(text)
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large());
        }
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let text = format!("the answer of {} was cut short: {}", self.endpoint, innermost(&error));
                self.no_answer(text)
            })?;
            // Frames without data are trailers.
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > limit {
                return Err(too_large());
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.into())
    }

    /// The connection failed, before or after the request was sent.
    fn failed(&self, error: &hyper_util::client::legacy::Error) -> Error {
        let endpoint = self.endpoint;
        if error.is_connect() {
            // Nothing was sent, so nothing was created.
            let text = connector::explain(endpoint, error);
            return Error::without_answer(self.request.operation(), Effect::Repeatable, text);
        }
        self.no_answer(format!("{endpoint} closed the connection without an answer: {}", innermost(error)))
    }

    fn no_answer(&self, text: String) -> Error {
        Error::without_answer(self.request.operation(), self.request.effect(), text)
    }
}

/// The text of the first cause.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(inner) = source(error) {
        error = inner;
    }
    error.to_string()
}

/// The cause of an error. An I/O error that wraps another one hides it from [`StdError::source`].
fn source<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}
