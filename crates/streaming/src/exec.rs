//! Exec and attach: the sub-protocols of `channel.k8s.io`.

mod pump;
mod resize;
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
    limits::{End, Limits, Outcome},
    meter::Meter,
    negotiate::{self, Agreed, Carrier},
    refusal::Refusal,
    wire::channel::Codec,
};

pub(crate) use self::{resize::size_message, status::Status};

/// The number of a channel in WebSocket messages.
pub(crate) mod number {
    pub(crate) const STDIN: u8 = 0;
    pub(crate) const STDOUT: u8 = 1;
    pub(crate) const STDERR: u8 = 2;
    pub(crate) const ERROR: u8 = 3;
    pub(crate) const RESIZE: u8 = 4;
    pub(crate) const COUNT: usize = 5;
}

/// A protocol that is spoken after the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// SPDY/3.1 with a stream for each of stdin, stdout, stderr, error and resize.
    Spdy(Version),
    /// WebSocket messages with a channel byte.
    WebSocket(Version),
    /// WebSocket text messages with a channel digit and base64.
    WebSocketBase64(Version),
}

/// A version of the sub-protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// `channel.k8s.io`.
    V1,
    /// `v2.channel.k8s.io`: an error stream that works. Not on WebSocket.
    V2,
    /// `v3.channel.k8s.io`: resize. Not on WebSocket.
    V3,
    /// `v4.channel.k8s.io`: exit codes.
    V4,
    /// `v5.channel.k8s.io`: the end of stdin. Only on WebSocket, where older versions cannot say it.
    V5,
}

const SPDY: [(&str, Protocol); 4] = [
    ("v4.channel.k8s.io", Protocol::Spdy(Version::V4)),
    ("v3.channel.k8s.io", Protocol::Spdy(Version::V3)),
    ("v2.channel.k8s.io", Protocol::Spdy(Version::V2)),
    ("channel.k8s.io", Protocol::Spdy(Version::V1)),
];
const WEBSOCKET_V5: [(&str, Protocol); 1] = [("v5.channel.k8s.io", Protocol::WebSocket(Version::V5))];
const WEBSOCKET: [(&str, Protocol); 4] = [
    ("v4.channel.k8s.io", Protocol::WebSocket(Version::V4)),
    ("v4.base64.channel.k8s.io", Protocol::WebSocketBase64(Version::V4)),
    ("channel.k8s.io", Protocol::WebSocket(Version::V1)),
    ("base64.channel.k8s.io", Protocol::WebSocketBase64(Version::V1)),
];

impl Protocol {
    /// Its version.
    pub fn version(self) -> Version {
        match self {
            Self::Spdy(version) | Self::WebSocket(version) | Self::WebSocketBase64(version) => version,
        }
    }

    /// Its name in requests and answers; `None` for a version that does not exist on this carrier.
    pub fn name(self) -> Option<&'static str> {
        let mut all = SPDY.iter().chain(&WEBSOCKET_V5).chain(&WEBSOCKET);
        all.find(|(_, protocol)| *protocol == self).map(|(name, _)| *name)
    }

    pub(crate) fn codec(self) -> Codec {
        match self {
            Self::WebSocketBase64(_) => Codec::Base64,
            Self::WebSocket(Version::V5) => Codec::Binary { closes: true },
            _ => Codec::Binary { closes: false },
        }
    }
}

/// What is done with the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec,
    Attach,
}

/// A request for exec or attach that was found in order.
#[derive(Clone, Debug)]
pub struct Request {
    /// The command; empty for attach.
    pub command: Vec<String>,
    /// The streams.
    pub options: ExecOptions,
    /// The protocol that both sides know.
    pub protocol: Protocol,
    action: Action,
    handshake: Option<Agreed<Protocol>>,
}

impl Request {
    /// Reads a request for exec.
    pub fn parse(parts: &Parts) -> Result<Self, Refusal> {
        Self::read(parts, Action::Exec)
    }

    /// Reads a request for attach.
    pub fn parse_attach(parts: &Parts) -> Result<Self, Refusal> {
        Self::read(parts, Action::Attach)
    }

    fn read(parts: &Parts, action: Action) -> Result<Self, Refusal> {
        let (options, command) = query(parts.uri.query().unwrap_or_default())?;
        let command = if action == Action::Exec { command } else { Vec::new() };
        let (protocol, handshake) = match negotiate::carrier(parts)? {
            Carrier::Spdy => (negotiate::spdy(parts, &SPDY)?, None),
            Carrier::WebSocket => {
                let unnamed = Protocol::WebSocket(Version::V1);
                let agreed = negotiate::websocket(parts, &WEBSOCKET_V5, &WEBSOCKET, unnamed)?;
                (agreed.protocol, Some(agreed))
            }
        };
        Ok(Self { command, options, protocol, action, handshake })
    }

    /// The answer that switches protocols.
    pub fn switching(&self) -> Response<()> {
        match &self.handshake {
            Some(agreed) => negotiate::switch_to_websocket(agreed),
            None => negotiate::switch_to_spdy(self.protocol.name().unwrap_or_default()),
        }
    }

    /// Whether a container runtime speaks this protocol itself, so that its address is proxied byte for byte
    /// ([`crate::proxy`]). Version 5 is not among them: there the session is served here, and
    /// [`crate::client::exec`] calls the runtime.
    pub fn passes_through(&self) -> bool {
        self.protocol.version() < Version::V5
    }
}

/// Which streams and which command a query asks for, as a kubelet reads it: `1` is yes, and anything else is no.
fn query(query: &str) -> Result<(ExecOptions, Vec<String>), Refusal> {
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
        // The first of several counts, as in Go.
        flag.get_or_insert(value == "1");
    }
    let [stdin, stdout, stderr, tty] = [stdin, stdout, stderr, tty].map(Option::unwrap_or_default);
    // A terminal has one output.
    let options = ExecOptions { stdin, stdout, stderr: stderr && !tty, tty };
    if !(options.stdin || options.stdout || options.stderr) {
        return Err(Refusal::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr: input=1, output=1 or error=1 in the query",
        ));
    }
    Ok((options, command))
}

/// Which errors of a provider are answered before the upgrade, and how. `None`: upgrade, and give the error to [`serve`],
/// which tells it where a kubelet would: on the error stream.
pub fn refuse_early(error: &Error) -> Option<Refusal> {
    let early = matches!(
        error.kind(),
        Kind::NotFound | Kind::Unsupported | Kind::Throttled { .. } | Kind::Exhausted | Kind::Cancelled
    );
    early.then(|| Refusal::of(error))
}

/// Serves a session over a connection that was upgraded, until the process has ended and the client knows, or the client
/// has gone. The provider's session is dropped as soon as either is the case, and when this future is dropped.
pub async fn serve<IO>(io: IO, request: &Request, started: Result<Session>, limits: &Limits) -> Outcome
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let meter = Meter::new();
    let job = pump::Job {
        started,
        version: request.protocol.version(),
        action: request.action,
        limits,
        meter: &meter,
    };
    let end: End = match request.protocol {
        Protocol::Spdy(_) => Box::pin(spdy::serve(io, request, job)).await,
        Protocol::WebSocket(_) | Protocol::WebSocketBase64(_) => {
            Box::pin(websocket::serve(io, request, job)).await
        }
    };
    meter.outcome(end)
}
