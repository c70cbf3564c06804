//! The connections to the API server: one HTTP/2 connection for all calls, one connection for each long watch, and a pool of
//! HTTP/2 connections for watches of single objects.
//!
//! kube-rs' own client speaks only HTTP/1.1, with one connection for each concurrent call: a burst of a thousand status writes
//! would cost a thousand TLS handshakes. Watches are separate because an HTTP/2 connection carries a hundred streams and long
//! watches would take them all. Watches of single objects are many and quiet, so they share the connections of the pool.
//!
//! The connection for calls is closed after a pause of the process ([`stall`](crate::stall)). Watches are not: they change
//! nothing. Shared connections that have fallen silent are dropped on request ([`silence`](crate::silence)).

use std::{sync::Arc, time::Duration};

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client as HyperClient,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::{ClientBuilder, ConfigExt as _};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, util::AndThenLayer};

use crate::{
    fence::body::{FencedBody, fence_body},
    retry_after::keep_retry_after,
    silence::{OpenConnections, SilenceGuard},
    stall::{StallDetector, StallGuard},
};

/// Pings find a dead connection within this time, long before the kernel gives up on it.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections in the pool for watches of single objects.
pub(crate) const WATCH_CONNECTIONS: usize = 4;

/// The clients for one set of credentials.
#[derive(Clone)]
pub(crate) struct Transport {
    /// For calls.
    pub(crate) calls: kube::Client,
    /// For watches.
    pub(crate) watches: kube::Client,
    /// For watches of single objects.
    pub(crate) watch_pool: [kube::Client; WATCH_CONNECTIONS],
    /// The connections that are shared.
    pub(crate) connections: Arc<OpenConnections>,
    /// Identifies the credentials.
    pub(crate) credentials_id: Arc<()>,
}

impl Transport {
    pub(crate) fn new(config: kube::Config) -> Result<Self, String> {
        let connections = Arc::<OpenConnections>::default();
        let connector = connector(&config, &connections)?;
        let calls = multiplexed(&config, &connector)?;
        let mut watch_pool = Vec::with_capacity(WATCH_CONNECTIONS);
        for _ in 0..WATCH_CONNECTIONS {
            watch_pool.push(multiplexed(&config, &connector)?);
        }
        let watch_pool = watch_pool.try_into().map_err(|_| "wrong size of the watch pool".to_owned())?;
        let watches = ClientBuilder::try_from(config).map_err(error_message)?;
        let watches = watches.with_layer(&AndThenLayer::new(keep_retry_after)).build();
        Ok(Self { calls, watches, watch_pool, connections, credentials_id: Arc::default() })
    }

    /// Uses one client for everything.
    pub(crate) fn single(client: kube::Client) -> Self {
        let watch_pool = std::array::from_fn(|_| client.clone());
        let (connections, credentials_id) = (Arc::default(), Arc::default());
        Self { calls: client.clone(), watch_pool, watches: client, connections, credentials_id }
    }
}

fn error_message(error: kube::Error) -> String {
    crate::Error::from(error).message
}

/// Opens connections for multiplexing. Clones share the TLS configuration.
fn connector(
    config: &kube::Config,
    connections: &Arc<OpenConnections>,
) -> Result<impl Connect + Clone + Send + Sync + 'static, String> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    let tls = config.rustls_client_config().map_err(error_message)?;
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone())
            .map_err(|error| format!("tls-server-name {name:?}: {error}"))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    // Below TLS, which has a buffer too.
    let (detector, connections) = (StallDetector::global(), Arc::clone(connections));
    let http = http.map_response(move |tcp: TokioIo<TcpStream>| {
        let guarded = StallGuard::new(tcp.into_inner(), Arc::clone(&detector));
        TokioIo::new(SilenceGuard::new(guarded, &connections))
    });
    Ok(https.enable_http1().enable_http2().wrap_connector(http))
}

fn multiplexed<C>(config: &kube::Config, connector: &C) -> Result<kube::Client, String>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let client: HyperClient<_, FencedBody> = HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector.clone());
    let service = ServiceBuilder::new()
        .and_then(keep_retry_after)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(error_message)?)
        .layer(config.extra_headers_layer().map_err(error_message)?)
        .map_err(BoxError::from)
        .map_request(fence_body)
        .service(client);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}
