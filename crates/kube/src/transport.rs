//! The connections to the API server: one HTTP/2 connection for all calls, one connection for each long watch, and a pool of
//! HTTP/2 connections for watches of single objects.
//!
//! kube-rs' own client speaks only HTTP/1.1, with one connection for each concurrent call: a burst of a thousand status writes
//! would cost a thousand TLS handshakes. Watches are separate because an HTTP/2 connection carries a hundred streams and long
//! watches would take them all. Watches of single objects are many and quiet, so they share the connections of the pool.
//!
//! The connection for calls is closed after a pause of the process ([`stall`](crate::stall)). Watches are not: they change
//! nothing. Shared connections that have fallen silent are dropped on request ([`silence`](crate::silence)).
//!
//! A peer that vanished without a word (a firewall that forgot the connection, a host without power) is noticed on all of
//! them: by pings of HTTP/2, and by TCP keep-alive, which is all that HTTP/1.1 has. A proxy that answers both and passes on
//! nothing is noticed by the reader of a watch, which expects bookmarks.

use std::{sync::Arc, time::Duration};

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client as HyperClient,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::client::ConfigExt as _;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use crate::{
    credentials::Credentials,
    fence::body::{FencedBody, fence_body},
    retry_after::keep_retry_after,
    silence::{OpenConnections, SilenceGuard},
    stall::{StallDetector, StallGuard},
};

/// Pings find a dead connection within this time, long before the kernel gives up on it.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keep-alive: the kernel probes a connection after this idle time, and drops it when as many probes are not answered. A
/// dead peer is noticed within a minute.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;

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
    /// The same credentials for other servers.
    pub(crate) credentials: Credentials,
}

impl Transport {
    pub(crate) fn new(config: &kube::Config) -> Result<Self, String> {
        let connections = Arc::<OpenConnections>::default();
        let connector = connector(config, &connections)?;
        let calls = multiplexed(config, &connector)?;
        let mut watch_pool = Vec::with_capacity(WATCH_CONNECTIONS);
        for _ in 0..WATCH_CONNECTIONS {
            watch_pool.push(multiplexed(config, &connector)?);
        }
        let watch_pool = watch_pool.try_into().map_err(|_| "wrong size of the watch pool".to_owned())?;
        let watches = one_request_per_connection(config)?;
        let credentials = Credentials::new(config);
        Ok(Self { calls, watches, watch_pool, connections, credentials_id: Arc::default(), credentials })
    }

    /// Uses one client for everything.
    pub(crate) fn single(client: kube::Client) -> Self {
        let watch_pool = std::array::from_fn(|_| client.clone());
        let (connections, credentials_id) = (Arc::default(), Arc::default());
        let credentials = Credentials::none();
        Self { calls: client.clone(), watch_pool, watches: client, connections, credentials_id, credentials }
    }
}

fn error_message(error: kube::Error) -> String {
    crate::Error::from(error).message
}

/// Opens TCP connections.
fn tcp(config: &kube::Config) -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    http.set_keepalive(Some(KEEP_ALIVE_IDLE));
    http.set_keepalive_interval(Some(KEEP_ALIVE_INTERVAL));
    http.set_keepalive_retries(Some(KEEP_ALIVE_PROBES));
    http
}

/// Opens connections for multiplexing. Clones share the TLS configuration.
fn connector(
    config: &kube::Config,
    connections: &Arc<OpenConnections>,
) -> Result<impl Connect + Clone + Send + Sync + 'static, String> {
    if let Some(proxy) = &config.proxy_url {
        return Err(format!("proxy-url {proxy}: proxies are not supported"));
    }
    let http = tcp(config);
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
    over(config, client)
}

/// A client for watches, streams and upgrades: HTTP/1.1, with a connection for each concurrent request.
fn one_request_per_connection(config: &kube::Config) -> Result<kube::Client, String> {
    let https = config.rustls_https_connector_with_connector(tcp(config)).map_err(error_message)?;
    let limit = config.connect_timeout.unwrap_or(Duration::MAX);
    // TLS included: a stream has no time limit of its own.
    let connector = https.map_future(move |connecting| {
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected,
                Err(elapsed) => Err(BoxError::from(elapsed)),
            }
        })
    });
    over(config, HyperClient::builder(TokioExecutor::new()).build(connector))
}

/// Adds what every request needs: the address, credentials and headers.
fn over<C>(config: &kube::Config, client: HyperClient<C, FencedBody>) -> Result<kube::Client, String>
where
    C: Connect + Clone + Send + Sync + 'static,
{
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

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::net::TcpListener;

    use super::*;

    /// Whether the kernel has a keep-alive timer for the connection from this local port (`tr` in /proc/net/tcp).
    fn has_keep_alive(port: u16) -> bool {
        let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
        let ours = sockets
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|fields| fields.get(1).is_some_and(|address| address.ends_with(&format!(":{port:04X}"))));
        ours.unwrap()[5].starts_with("02:")
    }

    #[tokio::test]
    async fn all_connections_have_tcp_keep_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let transport = Transport::new(&kube::Config::new(url.parse().unwrap())).unwrap();
        let [slot, ..] = transport.watch_pool;
        for client in [transport.calls, transport.watches, slot] {
            let request = http::Request::get("/version").body(Vec::new()).unwrap();
            let seen = async {
                let (_stream, peer) = listener.accept().await.unwrap();
                // Other timers of the connection end when the request is acknowledged.
                while !has_keep_alive(peer.port()) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let seen = tokio::time::timeout(Duration::from_secs(10), seen);
            tokio::select! {
                answer = client.request_text(request) => panic!("nobody answers: {answer:?}"),
                seen = seen => seen.expect("the connection has a keep-alive timer"),
            }
        }
    }
}
