//! Port-forward: any number of connections to a pod's ports over one client connection.

mod channels;
pub(crate) mod connection;
mod spdy;

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Response, request::Parts};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::protocol::Role;
use vk_provider::{Result, ability::Forward};

use crate::{
    activity::ActivityTracker,
    limits::{SessionLimits, SessionOutcome},
    negotiation::{self, AcceptedHandshake, UpgradeKind},
    rejected_upgrade::RejectedUpgrade,
    stream::{channel_codec::ChannelCodec, tunnel::WebSocketTunnel},
};

/// A protocol after the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// SPDY/3.1, `portforward.k8s.io`: a pair of streams for each connection.
    Spdy,
    /// SPDY/3.1 in WebSocket messages, `SPDY/3.1+portforward.k8s.io`.
    Tunnel,
    /// WebSocket, `v4.channel.k8s.io`: a pair of channels and one connection for each port in the query.
    Channels,
    /// `Channels` in base64, `v4.base64.channel.k8s.io`.
    ChannelsBase64,
}

pub(crate) const SPDY_NAME: &str = "portforward.k8s.io";
pub(crate) const TUNNEL_NAME: &str = "SPDY/3.1+portforward.k8s.io";

const SPDY: [(&str, Protocol); 1] = [(SPDY_NAME, Protocol::Spdy)];
const TUNNEL: [(&str, Protocol); 1] = [(TUNNEL_NAME, Protocol::Tunnel)];
const CHANNELS: [(&str, Protocol); 2] =
    [("v4.channel.k8s.io", Protocol::Channels), ("v4.base64.channel.k8s.io", Protocol::ChannelsBase64)];

impl Protocol {
    /// The name in requests and responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spdy => SPDY_NAME,
            Self::Tunnel => TUNNEL_NAME,
            Self::Channels => "v4.channel.k8s.io",
            Self::ChannelsBase64 => "v4.base64.channel.k8s.io",
        }
    }

    pub(crate) fn codec(self) -> ChannelCodec {
        if self == Self::ChannelsBase64 {
            ChannelCodec::Base64
        } else {
            ChannelCodec::Binary { has_close: false }
        }
    }

    /// How many ports fit in the channel byte or digit.
    fn max_ports(self) -> usize {
        match self {
            Self::Spdy | Self::Tunnel => usize::MAX,
            Self::Channels => 127,
            Self::ChannelsBase64 => 39,
        }
    }
}

/// A valid port-forward request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The negotiated protocol.
    pub protocol: Protocol,
    /// The ports in the query, if the protocol uses them; the others name a port with each connection.
    pub ports: Vec<u16>,
    handshake: Option<AcceptedHandshake<Protocol>>,
}

impl Request {
    /// Parses a request.
    pub fn parse(parts: &Parts) -> Result<Self, RejectedUpgrade> {
        let (protocol, handshake) = match negotiation::upgrade_kind(parts)? {
            UpgradeKind::Spdy => (negotiation::select_spdy(parts, &SPDY)?, None),
            UpgradeKind::WebSocket => {
                let accepted = negotiation::accept_websocket(parts, &TUNNEL, &CHANNELS, Protocol::Channels)?;
                (accepted.protocol, Some(accepted))
            }
        };
        let ports = match protocol {
            Protocol::Spdy | Protocol::Tunnel => Vec::new(),
            Protocol::Channels | Protocol::ChannelsBase64 => ports(parts.uri.query().unwrap_or_default())?,
        };
        if ports.len() > protocol.max_ports() {
            let most = protocol.max_ports();
            let body =
                format!("{} ports in one request: {} has room for {most}", ports.len(), protocol.name());
            return Err(RejectedUpgrade::bad_request(body));
        }
        Ok(Self { protocol, ports, handshake })
    }

    /// The response that switches protocols.
    pub fn switching(&self) -> Response<()> {
        match &self.handshake {
            Some(accepted) => negotiation::websocket_response(accepted),
            None => negotiation::spdy_response(self.protocol.name()),
        }
    }
}

/// Parses the ports in a query, repeated or comma-separated.
fn ports(query: &str) -> Result<Vec<u16>, RejectedUpgrade> {
    let mut ports = Vec::new();
    for (_, list) in form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "port") {
        if list.is_empty() {
            return Err(RejectedUpgrade::bad_request("query parameter \"port\" cannot be empty"));
        }
        for port in list.split(',') {
            ports.push(self::port(port).map_err(RejectedUpgrade::bad_request)?);
        }
    }
    if ports.is_empty() {
        return Err(RejectedUpgrade::bad_request("query parameter \"port\" is required"));
    }
    Ok(ports)
}

/// Parses a port number.
fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) => Err(format!("port {text:?} must be > 0")),
        Ok(port) => Ok(port),
        Err(error) => Err(format!("unable to parse {text:?} as a port: {error}")),
    }
}

/// Connects to a port of the pod.
pub(crate) type Dial = dyn Fn(u16) -> BoxFuture<'static, Result<Forward>> + Send + Sync;

/// Shared by all connections of one client.
#[derive(Clone)]
pub(crate) struct ForwardContext {
    pub(crate) dial: Arc<Dial>,
    pub(crate) limits: SessionLimits,
    pub(crate) activity: Arc<ActivityTracker>,
}

/// Serves port-forwarding over an upgraded connection until the client disconnects or, if the query named the ports, until all
/// connections are closed. `dial` is called for each connection; its errors are reported on the connection's error stream.
/// Dropping this future drops all connections.
///
/// A [`Forward::Url`] is connected to here and not proxied: the ports are known only after the upgrade.
pub async fn serve<IO, D>(io: IO, request: &Request, dial: D, limits: &SessionLimits) -> SessionOutcome
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    D: Fn(u16) -> BoxFuture<'static, Result<Forward>> + Send + Sync + 'static,
{
    let context = ForwardContext {
        dial: Arc::new(dial),
        limits: limits.clone(),
        activity: Arc::new(ActivityTracker::new()),
    };
    let end = match request.protocol {
        Protocol::Spdy => Box::pin(spdy::serve(io, &context)).await,
        Protocol::Tunnel => {
            let tunnel = WebSocketTunnel::new(io, Role::Server, limits).await;
            Box::pin(spdy::serve(tunnel, &context)).await
        }
        Protocol::Channels | Protocol::ChannelsBase64 => {
            Box::pin(channels::serve(io, request, &context)).await
        }
    };
    context.activity.outcome(end)
}
