//! Port-forward: any number of connections to ports of a pod over one connection of a client.

mod channels;
pub(crate) mod relay;
mod spdy;

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Response, request::Parts};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::protocol::Role;
use vk_provider::{Result, ability::Forward};

use crate::{
    limits::{Limits, Outcome},
    meter::Meter,
    negotiate::{self, Agreed, Carrier},
    refusal::Refusal,
    wire::{channel::Codec, tunnel::Tunnel},
};

/// A protocol that is spoken after the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// SPDY/3.1, `portforward.k8s.io`: a pair of streams for each connection.
    Spdy,
    /// The same within WebSocket messages, `SPDY/3.1+portforward.k8s.io`.
    Tunnel,
    /// WebSocket, `v4.channel.k8s.io`: a pair of channels, and one connection, for each port of the query.
    Channels,
    /// The same in base64, `v4.base64.channel.k8s.io`.
    ChannelsBase64,
}

pub(crate) const SPDY_NAME: &str = "portforward.k8s.io";
pub(crate) const TUNNEL_NAME: &str = "SPDY/3.1+portforward.k8s.io";

const SPDY: [(&str, Protocol); 1] = [(SPDY_NAME, Protocol::Spdy)];
const TUNNEL: [(&str, Protocol); 1] = [(TUNNEL_NAME, Protocol::Tunnel)];
const CHANNELS: [(&str, Protocol); 2] =
    [("v4.channel.k8s.io", Protocol::Channels), ("v4.base64.channel.k8s.io", Protocol::ChannelsBase64)];

impl Protocol {
    /// Its name in requests and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spdy => SPDY_NAME,
            Self::Tunnel => TUNNEL_NAME,
            Self::Channels => "v4.channel.k8s.io",
            Self::ChannelsBase64 => "v4.base64.channel.k8s.io",
        }
    }

    pub(crate) fn codec(self) -> Codec {
        if self == Self::ChannelsBase64 { Codec::Base64 } else { Codec::Binary { closes: false } }
    }

    /// How many ports have room in the channel byte, or digit.
    fn most_ports(self) -> usize {
        match self {
            Self::Spdy | Self::Tunnel => usize::MAX,
            Self::Channels => 127,
            Self::ChannelsBase64 => 39,
        }
    }
}

/// A request for port-forward that was found in order.
#[derive(Clone, Debug)]
pub struct Request {
    /// The protocol that both sides know.
    pub protocol: Protocol,
    /// The ports of the query, where the protocol needs them; the others name a port with each connection.
    pub ports: Vec<u16>,
    handshake: Option<Agreed<Protocol>>,
}

impl Request {
    /// Reads a request.
    pub fn parse(parts: &Parts) -> Result<Self, Refusal> {
        let (protocol, handshake) = match negotiate::carrier(parts)? {
            Carrier::Spdy => (negotiate::spdy(parts, &SPDY)?, None),
            Carrier::WebSocket => {
                let agreed = negotiate::websocket(parts, &TUNNEL, &CHANNELS, Protocol::Channels)?;
                (agreed.protocol, Some(agreed))
            }
        };
        let ports = match protocol {
            Protocol::Spdy | Protocol::Tunnel => Vec::new(),
            Protocol::Channels | Protocol::ChannelsBase64 => ports(parts.uri.query().unwrap_or_default())?,
        };
        if ports.len() > protocol.most_ports() {
            let most = protocol.most_ports();
            let body =
                format!("{} ports in one request: {} has room for {most}", ports.len(), protocol.name());
            return Err(Refusal::bad_request(body));
        }
        Ok(Self { protocol, ports, handshake })
    }

    /// The answer that switches protocols.
    pub fn switching(&self) -> Response<()> {
        match &self.handshake {
            Some(agreed) => negotiate::switch_to_websocket(agreed),
            None => negotiate::switch_to_spdy(self.protocol.name()),
        }
    }
}

/// The ports of a query: repeated, or with commas.
fn ports(query: &str) -> Result<Vec<u16>, Refusal> {
    let mut ports = Vec::new();
    for (_, list) in form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "port") {
        if list.is_empty() {
            return Err(Refusal::bad_request("query parameter \"port\" cannot be empty"));
        }
        for port in list.split(',') {
            ports.push(self::port(port).map_err(Refusal::bad_request)?);
        }
    }
    if ports.is_empty() {
        return Err(Refusal::bad_request("query parameter \"port\" is required"));
    }
    Ok(ports)
}

/// A port's number.
fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) => Err(format!("port {text:?} must be > 0")),
        Ok(port) => Ok(port),
        Err(error) => Err(format!("unable to parse {text:?} as a port: {error}")),
    }
}

/// Makes connections to the pod.
pub(crate) type Dial = dyn Fn(u16) -> BoxFuture<'static, Result<Forward>> + Send + Sync;

/// What all connections of one client share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) dial: Arc<Dial>,
    pub(crate) limits: Limits,
    pub(crate) meter: Arc<Meter>,
}

/// Serves port-forwarding over a connection that was upgraded, until the client goes or, where the client named the ports
/// beforehand, until all of them are through. `dial` is called for each connection; what goes wrong with it is told on that
/// connection's error stream. All of them are dropped when this future is.
///
/// An address ([`Forward::Url`]) is called by us: which ports a client wants is known only after the upgrade.
pub async fn serve<IO, D>(io: IO, request: &Request, dial: D, limits: &Limits) -> Outcome
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    D: Fn(u16) -> BoxFuture<'static, Result<Forward>> + Send + Sync + 'static,
{
    let shared = Shared { dial: Arc::new(dial), limits: limits.clone(), meter: Arc::new(Meter::new()) };
    let end = match request.protocol {
        Protocol::Spdy => Box::pin(spdy::serve(io, &shared)).await,
        Protocol::Tunnel => {
            let tunnel = Tunnel::new(io, Role::Server, limits).await;
            Box::pin(spdy::serve(tunnel, &shared)).await
        }
        Protocol::Channels | Protocol::ChannelsBase64 => {
            Box::pin(channels::serve(io, request, &shared)).await
        }
    };
    shared.meter.outcome(end)
}
