//! Exec and attach: the sub-protocols of `channel.k8s.io`.

mod resize;
mod runner;
mod spdy;
pub(crate) mod status;
mod websocket;

use http::{Response, request::Parts};
use tokio::io::{AsyncRead, AsyncWrite};
use vk_provider::{
    Error, Result,
    ability::{ExecOptions, Session},
    error::Kind,
};

use crate::{
    activity::ActivityTracker,
    limits::{SessionEnd, SessionLimits, SessionOutcome},
    negotiation::{self, AcceptedHandshake, UpgradeKind},
    rejected_upgrade::RejectedUpgrade,
    stream::channel_codec::ChannelCodec,
};

pub(crate) use self::{resize::size_message, status::CommandStatus};

/// Channel numbers in WebSocket messages.
pub(crate) mod number {
    pub(crate) const STDIN: u8 = 0;
    pub(crate) const STDOUT: u8 = 1;
    pub(crate) const STDERR: u8 = 2;
    pub(crate) const ERROR: u8 = 3;
    pub(crate) const RESIZE: u8 = 4;
    pub(crate) const COUNT: usize = 5;
}

/// A protocol after the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// SPDY/3.1 with a stream for each of stdin, stdout, stderr, error and resize.
    Spdy(ProtocolVersion),
    /// WebSocket messages with a channel byte.
    WebSocket(ProtocolVersion),
    /// WebSocket text messages with a channel digit and base64.
    WebSocketBase64(ProtocolVersion),
}

/// A version of the sub-protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    /// `channel.k8s.io`.
    V1,
    /// `v2.channel.k8s.io`: a working error stream. Not on WebSocket.
    V2,
    /// `v3.channel.k8s.io`: resize. Not on WebSocket.
    V3,
    /// `v4.channel.k8s.io`: exit codes.
    V4,
    /// `v5.channel.k8s.io`: the end of stdin. Only on WebSocket, where older versions cannot signal it.
    V5,
}

const SPDY: [(&str, Protocol); 4] = [
    ("v4.channel.k8s.io", Protocol::Spdy(ProtocolVersion::V4)),
    ("v3.channel.k8s.io", Protocol::Spdy(ProtocolVersion::V3)),
    ("v2.channel.k8s.io", Protocol::Spdy(ProtocolVersion::V2)),
    ("channel.k8s.io", Protocol::Spdy(ProtocolVersion::V1)),
];
const WEBSOCKET_V5: [(&str, Protocol); 1] = [("v5.channel.k8s.io", Protocol::WebSocket(ProtocolVersion::V5))];
const WEBSOCKET: [(&str, Protocol); 4] = [
    ("v4.channel.k8s.io", Protocol::WebSocket(ProtocolVersion::V4)),
    ("v4.base64.channel.k8s.io", Protocol::WebSocketBase64(ProtocolVersion::V4)),
    ("channel.k8s.io", Protocol::WebSocket(ProtocolVersion::V1)),
    ("base64.channel.k8s.io", Protocol::WebSocketBase64(ProtocolVersion::V1)),
];

impl Protocol {
    /// The sub-protocol's version.
    pub fn version(self) -> ProtocolVersion {
        match self {
            Self::Spdy(version) | Self::WebSocket(version) | Self::WebSocketBase64(version) => version,
        }
    }

    /// The name in requests and responses; `None` for a version that does not exist on this transport.
    pub fn name(self) -> Option<&'static str> {
        let mut all = SPDY.iter().chain(&WEBSOCKET_V5).chain(&WEBSOCKET);
        all.find(|(_, protocol)| *protocol == self).map(|(name, _)| *name)
    }

    pub(crate) fn codec(self) -> ChannelCodec {
        match self {
            Self::WebSocketBase64(_) => ChannelCodec::Base64,
            Self::WebSocket(ProtocolVersion::V5) => ChannelCodec::Binary { has_close: true },
            _ => ChannelCodec::Binary { has_close: false },
        }
    }
}

/// What to do with the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec,
    Attach,
}

/// A valid exec or attach request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The command; empty for attach.
    pub command: Vec<String>,
    /// The streams.
    pub options: ExecOptions,
    /// The negotiated protocol.
    pub protocol: Protocol,
    action: Action,
    handshake: Option<AcceptedHandshake<Protocol>>,
}

impl Request {
    /// Parses an exec request.
    pub fn parse(parts: &Parts) -> Result<Self, RejectedUpgrade> {
        Self::read(parts, Action::Exec)
    }

    /// Parses an attach request.
    pub fn parse_attach(parts: &Parts) -> Result<Self, RejectedUpgrade> {
        Self::read(parts, Action::Attach)
    }

    fn read(parts: &Parts, action: Action) -> Result<Self, RejectedUpgrade> {
        let (options, command) = query(parts.uri.query().unwrap_or_default())?;
        let command = if action == Action::Exec { command } else { Vec::new() };
        let (protocol, handshake) = match negotiation::upgrade_kind(parts)? {
            UpgradeKind::Spdy => (negotiation::select_spdy(parts, &SPDY)?, None),
            UpgradeKind::WebSocket => {
                let default_protocol = Protocol::WebSocket(ProtocolVersion::V1);
                let accepted =
                    negotiation::accept_websocket(parts, &WEBSOCKET_V5, &WEBSOCKET, default_protocol)?;
                (accepted.protocol, Some(accepted))
            }
        };
        Ok(Self { command, options, protocol, action, handshake })
    }

    /// The response that switches protocols.
    pub fn switching(&self) -> Response<()> {
        match &self.handshake {
            Some(accepted) => negotiation::websocket_response(accepted),
            None => negotiation::spdy_response(self.protocol.name().unwrap_or_default()),
        }
    }

    /// Whether container runtimes speak this protocol, so that their URL can be proxied byte for byte ([`crate::proxy`]). They do not
    /// speak version 5: the session is then served here, and [`crate::client::exec`] connects to the runtime.
    pub fn passes_through(&self) -> bool {
        self.protocol.version() < ProtocolVersion::V5
    }
}

/// Parses the streams and the command in a query as the kubelet does: `1` is true, anything else is false.
fn query(query: &str) -> Result<(ExecOptions, Vec<String>), RejectedUpgrade> {
    let mut command = Vec::new();
    let (mut stdin, mut stdout, mut stderr, mut tty) = (None, None, None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let flag = match &*name {
            "command" => {
                command.push(value.into_owned());
                continue;
            }
            "input" => &mut stdin,
            "output" => &mut stdout,
            "error" => &mut stderr,
            "tty" => &mut tty,
            _ => continue,
        };
        // The first value counts, as in Go.
        flag.get_or_insert(value == "1");
    }
    let [stdin, stdout, stderr, tty] = [stdin, stdout, stderr, tty].map(Option::unwrap_or_default);
    // A terminal has only one output.
    let options = ExecOptions { stdin, stdout, stderr: stderr && !tty, tty };
    if !(options.stdin || options.stdout || options.stderr) {
        return Err(RejectedUpgrade::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr: input=1, output=1 or error=1 in the query",
        ));
    }
    Ok((options, command))
}

/// The response to provider errors that are reported before the upgrade. For `None`, upgrade and pass the error to [`serve`], which
/// reports it on the error stream, as a kubelet does.
pub fn reject_early(error: &Error) -> Option<RejectedUpgrade> {
    let early = matches!(
        error.kind(),
        Kind::NotFound | Kind::Unsupported | Kind::Throttled { .. } | Kind::Exhausted | Kind::Cancelled
    );
    early.then(|| RejectedUpgrade::from_error(error))
}

/// Serves a session over an upgraded connection until the process has ended and the client has been told, or the client has
/// disconnected. The provider's session is dropped at that moment, and when this future is dropped.
pub async fn serve<IO>(
    io: IO,
    request: &Request,
    started: Result<Session>,
    limits: &SessionLimits,
) -> SessionOutcome
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let activity = ActivityTracker::new();
    let runner = runner::SessionRunner {
        started,
        version: request.protocol.version(),
        action: request.action,
        limits,
        activity: &activity,
    };
    let end: SessionEnd = match request.protocol {
        Protocol::Spdy(_) => Box::pin(spdy::serve(io, request, runner)).await,
        Protocol::WebSocket(_) | Protocol::WebSocketBase64(_) => {
            Box::pin(websocket::serve(io, request, runner)).await
        }
    };
    activity.outcome(end)
}
