//! The connections to the API server: one that all calls share, by HTTP/2, one for each long watch, and a few watch_pool for
//! watches of single objects.
//!
//! kube-rs' own client speaks HTTP/1.1 only, where every call that is under way needs a connection of its own; a burst of
//! a thousand status writes would cost a thousand TLS handshakes. Watches stay apart, because an HTTP/2 connection carries
//! a hundred streams at a time and long watches would take them all. Watches of single objects are many and silent, so
//! they share connections too, but others: the watch_pool.
//!
//! The connection of calls does not outlive a pause of the process ([`pause`](crate::pause)). Watches may: they change nothing.

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
    gate::{self, Gated},
    stall::{StallDetector, StallGuard},
};

/// A dead connection is noticed by pings within this time, and not when the kernel gives up on it.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_LIMIT: Duration = Duration::from_secs(10);

/// How many connections carry the watches of single objects.
pub(crate) const WATCH_CONNECTIONS: usize = 4;

/// Clients for one set of credentials.
#[derive(Clone)]
pub(crate) struct Transport {
    /// For calls.
    pub(crate) calls: kube::Client,
    /// For watches.
    pub(crate) watches: kube::Client,
    /// For watches of single objects.
    pub(crate) watch_pool: [kube::Client; WATCH_CONNECTIONS],
    /// Tells it from those of other credentials.
    pub(crate) mark: Arc<()>,
}

impl Transport {
    pub(crate) fn new(config: kube::Config) -> Result<Self, String> {
        let connector = connector(&config)?;
        let calls = multiplexed(&config, &connector)?;
        let mut watch_pool = Vec::with_capacity(WATCH_CONNECTIONS);
        for _ in 0..WATCH_CONNECTIONS {
            watch_pool.push(multiplexed(&config, &connector)?);
        }
        let watch_pool = watch_pool.try_into().map_err(|_| "the watch_pool cannot be counted".to_owned())?;
        let watches = kube::Client::try_from(config).map_err(told)?;
        Ok(Self { calls, watches, watch_pool, mark: Arc::default() })
    }

    /// One client for both, for callers that have made it themselves.
    pub(crate) fn single(client: kube::Client) -> Self {
        let watch_pool = std::array::from_fn(|_| client.clone());
        Self { calls: client.clone(), watch_pool, watches: client, mark: Arc::default() }
    }
}

fn told(error: kube::Error) -> String {
    crate::Error::from(error).message
}

/// Opens connections that can be shared. Clones share what does not change: the certificates.
fn connector(config: &kube::Config) -> Result<impl Connect + Clone + Send + Sync + 'static, String> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    let tls = config.rustls_client_config().map_err(told)?;
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone())
            .map_err(|error| format!("tls-server-name {name:?}: {error}"))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    // Below TLS, which has a buffer too.
    let pulse = StallDetector::of_this_process();
    let http = http.map_response(move |tcp: TokioIo<TcpStream>| {
        TokioIo::new(StallGuard::new(tcp.into_inner(), Arc::clone(&pulse)))
    });
    Ok(https.enable_http1().enable_http2().wrap_connector(http))
}

fn multiplexed<C>(config: &kube::Config, connector: &C) -> Result<kube::Client, String>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let client: HyperClient<_, Gated> = HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_LIMIT)
        .build(connector.clone());
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(told)?)
        .layer(config.extra_headers_layer().map_err(told)?)
        .map_err(BoxError::from)
        .map_request(gate::gated)
        .service(client);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}
