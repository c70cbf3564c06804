//! The HTTP handshake.

use bytes::Bytes;
use futures::future::{self, Either};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use vk_provider::{Error, Result, error::Kind};

use crate::{
    limits::SessionLimits,
    negotiation::{SPDY, STREAM_PROTOCOL, header_values},
};

/// Limit of a response that is not an upgrade.
const MAX_RESPONSE: usize = 64 << 10;

/// A connection after the upgrade.
pub(crate) type Io = TokioIo<Upgraded>;

/// The server's response.
#[derive(Debug)]
pub(crate) enum UpgradeResponse {
    /// The protocol was switched.
    Switched(Response<()>, Io),
    /// It was not.
    Rejected(Response<Bytes>),
}

/// Parses a URL. TLS is not supported: callers pass their own connection instead.
pub(crate) fn uri(url: &str) -> Result<Uri> {
    // The URL grants access, so it must not appear in a message.
    let uri: Uri = url.parse().map_err(|error| Error::invalid("parse a streaming URL").caused_by(error))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(uri),
        (scheme, _) => Err(Error::unsupported(format!(
            "parse a streaming URL: its scheme is {:?}; only http with a host is supported",
            scheme.unwrap_or_default()
        ))),
    }
}

/// Connects to the host of a URL.
pub(crate) async fn connect(uri: &Uri, limits: &SessionLimits) -> Result<TcpStream> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(80);
    let failed = || Error::unavailable(format!("connect to the streaming server {host}:{port}"));
    let stream = timeout(limits.creation, TcpStream::connect((host, port)))
        .await
        .map_err(|elapsed| failed().caused_by(elapsed))?
        .map_err(|error| failed().caused_by(error))?;
    // Keystrokes must not wait for each other.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// A request for a URL, without upgrade headers.
pub(super) fn request(method: Method, uri: &Uri) -> Result<Request<()>> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .body(())
        .map_err(|error| Error::invalid("build a request for a streaming URL").caused_by(error))
}

/// The protocols that a client offers to a server.
#[derive(Clone, Debug)]
pub struct ProtocolOffer {
    names: Vec<&'static str>,
    /// The key of a WebSocket handshake; unset for SPDY.
    key: Option<String>,
}

impl ProtocolOffer {
    /// Offers protocols over SPDY.
    pub fn spdy(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), key: None }
    }

    /// Offers protocols over WebSocket.
    pub fn websocket(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), key: Some(generate_key()) }
    }

    /// Adds the upgrade headers.
    pub fn add_headers(&self, headers: &mut HeaderMap) -> Result<()> {
        let unusable = |error| Error::internal("build a WebSocket handshake").caused_by(error);
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        let Some(key) = &self.key else {
            headers.insert(header::UPGRADE, HeaderValue::from_static(SPDY));
            for name in &self.names {
                headers.append(STREAM_PROTOCOL, HeaderValue::from_static(name));
            }
            return Ok(());
        };
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::try_from(key).map_err(unusable)?);
        if !self.names.is_empty() {
            let list = HeaderValue::try_from(self.names.join(", ")).map_err(unusable)?;
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, list);
        }
        Ok(())
    }

    /// The protocol that the server selected, from the headers of its response; empty if it names none.
    pub fn selected<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str> {
        let Some(key) = &self.key else {
            return Ok(header_values(headers, &STREAM_PROTOCOL).next().unwrap_or_default());
        };
        let accept = headers.get(header::SEC_WEBSOCKET_ACCEPT);
        if accept.is_none_or(|accept| accept.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Error::internal(
                "upgrade to WebSocket: the server's Sec-WebSocket-Accept does not match our key",
            ));
        }
        Ok(header_values(headers, &header::SEC_WEBSOCKET_PROTOCOL).next().unwrap_or_default())
    }
}

/// Sends the offer and returns the protocol that the server selected.
pub(super) async fn negotiate<IO>(
    io: IO,
    mut request: Request<()>,
    offer: &ProtocolOffer,
    limits: &SessionLimits,
) -> Result<(String, Io)>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    offer.add_headers(request.headers_mut())?;
    let (response, io) = require_switched(send_upgrade(io, request, limits).await?)?;
    Ok((offer.selected(response.headers())?.to_owned(), io))
}

/// Sends an upgrade request.
pub(crate) async fn send_upgrade<IO>(
    io: IO,
    request: Request<()>,
    limits: &SessionLimits,
) -> Result<UpgradeResponse>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match timeout(limits.creation, exchange(io, request)).await {
        Ok(Ok(switched)) => Ok(switched),
        Ok(Err(error)) => {
            Err(Error::unavailable("upgrade the connection to the streaming server").caused_by(error))
        }
        Err(_) => Err(Error::unavailable(format!(
            "upgrade the connection to the streaming server: no answer within {:?}",
            limits.creation
        ))),
    }
}

async fn exchange<IO>(
    io: IO,
    request: Request<()>,
) -> Result<UpgradeResponse, Box<dyn std::error::Error + Send + Sync>>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    let call = async move {
        let mut response = sender.send_request(request.map(|()| Empty::<Bytes>::new())).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(&mut response).await?;
            return Ok(UpgradeResponse::Switched(response.map(drop), TokioIo::new(upgraded)));
        }
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
        Ok(UpgradeResponse::Rejected(Response::from_parts(parts, body)))
    };
    // The connection must be polled for the call to progress. It ends first when the upgrade succeeds.
    match future::select(Box::pin(call), Box::pin(connection.with_upgrades())).await {
        Either::Left((answered, _)) => answered,
        Either::Right((_, call)) => call.await,
    }
}

/// Converts a response that is not an upgrade to an error.
fn require_switched(answer: UpgradeResponse) -> Result<(Response<()>, Io)> {
    let refused = match answer {
        UpgradeResponse::Switched(response, io) => return Ok((response, io)),
        UpgradeResponse::Rejected(refused) => refused,
    };
    let kind = match refused.status() {
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::BAD_REQUEST => Kind::Invalid,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Kind::Denied,
        StatusCode::TOO_MANY_REQUESTS => Kind::Throttled { after: None },
        StatusCode::NOT_IMPLEMENTED => Kind::Unsupported,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Kind::Unavailable,
        _ => Kind::Internal,
    };
    let text: String = String::from_utf8_lossy(refused.body()).trim().chars().take(500).collect();
    let status = refused.status();
    Err(Error::new(
        kind,
        format!("upgrade the connection to the streaming server: it answered {status}: {text}"),
    ))
}
