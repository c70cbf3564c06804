//! HTTP until the protocol is switched.

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
    limits::Limits,
    negotiate::{SPDY, STREAM_PROTOCOL, values},
};

/// The most that is read of an answer that is no upgrade.
const LONGEST_ANSWER: usize = 64 << 10;

/// A connection after the upgrade.
pub(crate) type Io = TokioIo<Upgraded>;

/// What a server answered.
#[derive(Debug)]
pub(crate) enum Switched {
    /// The protocol was switched.
    Yes(Response<()>, Io),
    /// It was not.
    No(Response<Bytes>),
}

/// Reads an address. One that needs TLS is not for us: who has a connection gives it to the functions that take one.
pub(crate) fn uri(url: &str) -> Result<Uri> {
    // The address lets whoever knows it in, so that it must not stand in a message.
    let uri: Uri =
        url.parse().map_err(|error| Error::invalid("read a streaming address").caused_by(error))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(uri),
        (scheme, _) => Err(Error::unsupported(format!(
            "read a streaming address: its scheme is {:?}, and only http with a host is served",
            scheme.unwrap_or_default()
        ))),
    }
}

/// Connects to the host of an address.
pub(crate) async fn connect(uri: &Uri, limits: &Limits) -> Result<TcpStream> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(80);
    let failed = || Error::unavailable(format!("connect to the streaming server {host}:{port}"));
    let stream = timeout(limits.creation, TcpStream::connect((host, port)))
        .await
        .map_err(|elapsed| failed().caused_by(elapsed))?
        .map_err(|error| failed().caused_by(error))?;
    // Keys that are typed shall not wait for each other.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// A request to an address, without the headers of an upgrade.
pub(super) fn request(method: Method, uri: &Uri) -> Result<Request<()>> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .body(())
        .map_err(|error| Error::invalid("make a request of a streaming address").caused_by(error))
}

/// The protocols that a client knows, as it asks a server for one of them.
#[derive(Clone, Debug)]
pub struct Offer {
    names: Vec<&'static str>,
    /// What a server that speaks WebSocket has to answer; SPDY has no such thing.
    key: Option<String>,
}

impl Offer {
    /// Of protocols over SPDY.
    pub fn spdy(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), key: None }
    }

    /// Of protocols over WebSocket.
    pub fn websocket(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), key: Some(generate_key()) }
    }

    /// Puts in the headers that ask for the upgrade.
    pub fn ask(&self, headers: &mut HeaderMap) -> Result<()> {
        let unusable = |error| Error::internal("make a WebSocket handshake").caused_by(error);
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

    /// The protocol that the server took, by the headers of its answer; empty if it names none.
    pub fn taken<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str> {
        let Some(key) = &self.key else {
            return Ok(values(headers, &STREAM_PROTOCOL).next().unwrap_or_default());
        };
        let accept = headers.get(header::SEC_WEBSOCKET_ACCEPT);
        if accept.is_none_or(|accept| accept.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Error::internal(
                "upgrade to WebSocket: the server's Sec-WebSocket-Accept is not the answer to our key",
            ));
        }
        Ok(values(headers, &header::SEC_WEBSOCKET_PROTOCOL).next().unwrap_or_default())
    }
}

/// Makes the offer. Answers with the protocol that the server took.
pub(super) async fn agree<IO>(
    io: IO,
    mut request: Request<()>,
    offer: &Offer,
    limits: &Limits,
) -> Result<(String, Io)>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    offer.ask(request.headers_mut())?;
    let (response, io) = switched(switch(io, request, limits).await?)?;
    Ok((offer.taken(response.headers())?.to_owned(), io))
}

/// Sends a request that asks for an upgrade.
pub(crate) async fn switch<IO>(io: IO, request: Request<()>, limits: &Limits) -> Result<Switched>
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
) -> Result<Switched, Box<dyn std::error::Error + Send + Sync>>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    let call = async move {
        let mut response = sender.send_request(request.map(|()| Empty::<Bytes>::new())).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(&mut response).await?;
            return Ok(Switched::Yes(response.map(drop), TokioIo::new(upgraded)));
        }
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
        Ok(Switched::No(Response::from_parts(parts, body)))
    };
    // The connection must be driven for the call to get on; that it ends first is the ordinary case of an upgrade.
    match future::select(Box::pin(call), Box::pin(connection.with_upgrades())).await {
        Either::Left((answered, _)) => answered,
        Either::Right((_, call)) => call.await,
    }
}

/// An answer that is no upgrade, as an error.
fn switched(answer: Switched) -> Result<(Response<()>, Io)> {
    let refused = match answer {
        Switched::Yes(response, io) => return Ok((response, io)),
        Switched::No(refused) => refused,
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
    let said: String = String::from_utf8_lossy(refused.body()).trim().chars().take(500).collect();
    let status = refused.status();
    Err(Error::new(
        kind,
        format!("upgrade the connection to the streaming server: it answered {status}: {said}"),
    ))
}
