//! Opens connections, and explains why one could not be opened.

use std::{
    error::Error as StdError,
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::connect::{
        Connected, Connection as HyperConnection, HttpConnector,
        dns::{GaiAddrs, GaiResolver, Name},
    },
    rt::TokioIo,
};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use tower::{BoxError, ServiceExt as _, service_fn, util::BoxCloneSyncService};
use tracing::warn;
use vk_provider::ability::BoxDuplex;

use super::{Endpoint, innermost, source};

/// The name of the server has no address.
#[derive(Debug)]
struct Unresolved(io::Error);

/// There is no TCP connection.
#[derive(Debug)]
struct Unconnected(BoxError);

/// The deadline for connecting.
#[derive(Debug)]
struct Elapsed(Duration);

/// A connection with or without TLS.
pub(super) struct Connection(TokioIo<BoxDuplex>);

/// Opens connections.
pub(super) type Connector = BoxCloneSyncService<Uri, Connection, BoxError>;

/// A connector for HTTP/1.1 with and without TLS. Certificates are not optional.
pub(super) fn new(limit: Duration, roots: Option<Arc<RootCertStore>>) -> Connector {
    let resolver = service_fn(|name: Name| async move {
        let resolved: Result<GaiAddrs, io::Error> = GaiResolver::new().oneshot(name).await;
        resolved.map_err(Unresolved)
    });
    let mut http = HttpConnector::new_with_resolver(resolver);
    http.enforce_http(false);
    http.set_nodelay(true);
    let http = http.map_err(|error| Unconnected(error.into()));
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls(roots))
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    BoxCloneSyncService::new(https.map_future(move |connecting| async move {
        match tokio::time::timeout(limit, connecting).await {
            Ok(connected) => connected.map(|stream| Connection::new(Box::new(TokioIo::new(stream)))),
            Err(_) => Err(BoxError::from(Elapsed(limit))),
        }
    }))
}

/// A connector to whatever `dial` returns.
#[cfg(any(test, feature = "fake"))]
pub(super) fn over(dial: impl Fn() -> BoxDuplex + Clone + Send + Sync + 'static) -> Connector {
    BoxCloneSyncService::new(service_fn(move |_: Uri| std::future::ready(Ok(Connection::new(dial())))))
}

fn tls(roots: Option<Arc<RootCertStore>>) -> ClientConfig {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
    };
    if let Some(roots) = roots {
        return builder().with_root_certificates(roots).with_no_client_auth();
    }
    match builder().with_native_roots() {
        Ok(builder) => builder.with_no_client_auth(),
        Err(error) => {
            // Endpoints without TLS still work, and with TLS the handshake says what is missing.
            warn!(%error, "this host has no CA certificates: TLS connections will fail");
            builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        }
    }
}

/// Why there is no connection, and what to do.
pub(super) fn explain(endpoint: &Endpoint, error: &(dyn StdError + 'static)) -> String {
    let mut is_unconnected = false;
    let mut cause = Some(error);
    while let Some(error) = cause {
        is_unconnected |= error.is::<Unconnected>();
        if let Some(Unresolved(error)) = error.downcast_ref() {
            let host = endpoint.host();
            return format!("cannot resolve {host}: {error}; check region, endpoint and DNS");
        }
        if let Some(Elapsed(limit)) = error.downcast_ref() {
            return format!(
                "cannot connect to {endpoint} within {limit:?}: check endpoint, routes and firewalls"
            );
        }
        cause = source(error);
    }
    if is_unconnected {
        return format!("cannot connect to {endpoint}: {}; check the endpoint", innermost(error));
    }
    // With a TCP connection, only TLS is left.
    format!(
        "TLS with {endpoint} failed: {}; check the endpoint, the CA certificates of this host, and whether a proxy replaces \
         certificates",
        innermost(error)
    )
}

// === impl Connection ===

impl Connection {
    fn new(stream: BoxDuplex) -> Self {
        Self(TokioIo::new(stream))
    }

    /// The stream below.
    pub(super) fn into_inner(self) -> BoxDuplex {
        self.0.into_inner()
    }
}

impl HyperConnection for Connection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

// === impl Unresolved ===

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot resolve the name: {}", self.0)
    }
}

impl StdError for Unresolved {}

// === impl Unconnected ===

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no TCP connection")
    }
}

impl StdError for Unconnected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

// === impl Elapsed ===

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not connected within {:?}", self.0)
    }
}

impl StdError for Elapsed {}
