//! An address that a provider gives, proxied byte for byte: for the protocols that a container runtime speaks itself.

use bytes::Bytes;
use futures::future::{self, Either};
use http::{HeaderName, HeaderValue, Request, Response, header, request::Parts};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use vk_provider::{Error, Result, ability::BoxDuplex};

use crate::{
    client::{self, Switched},
    limits::{End, Limits, Outcome},
    meter::Meter,
    negotiate::STREAM_PROTOCOL,
    wire::Way,
};

/// The headers of a handshake. Nothing else of the client's request is the runtime's business, least of all who sent it.
const PASSED: [HeaderName; 7] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
    STREAM_PROTOCOL,
];

/// What the server behind an address answered to the client's request.
pub enum Upstream {
    /// It switches protocols: the client gets this answer, and then [`splice`] moves the bytes.
    Switched {
        /// The answer.
        response: Response<()>,
        /// The connection.
        io: BoxDuplex,
    },
    /// It does not: the client gets this answer, and that is all.
    Answered(Response<Bytes>),
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Switched { response, .. } => f.debug_tuple("Switched").field(response).finish(),
            Self::Answered(response) => f.debug_tuple("Answered").field(response).finish(),
        }
    }
}

/// Sends the client's handshake to an address.
pub async fn open(url: &str, parts: &Parts, limits: &Limits) -> Result<Upstream> {
    let uri = client::uri(url)?;
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let unusable = || Error::invalid("make a request of a streaming address");
    *request.uri_mut() = path.parse().map_err(|error| unusable().caused_by(error))?;
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::try_from(host).map_err(|error| unusable().caused_by(error))?;
    request.headers_mut().insert(header::HOST, host);
    for name in PASSED {
        for value in parts.headers.get_all(&name) {
            request.headers_mut().append(name.clone(), value.clone());
        }
    }
    let io = client::connect(&uri, limits).await?;
    Ok(match client::switch(io, request, limits).await? {
        Switched::Yes(response, io) => Upstream::Switched { response, io: Box::new(io) },
        Switched::No(response) => Upstream::Answered(response),
    })
}

/// Moves bytes both ways, until both directions have ended, one of the sides breaks off, or nothing moves for too long.
pub async fn splice<A, B>(client: A, upstream: B, limits: &Limits) -> Outcome
where
    A: AsyncRead + AsyncWrite + Send + Unpin,
    B: AsyncRead + AsyncWrite + Send + Unpin,
{
    let meter = Meter::new();
    let (from_client, to_client) = tokio::io::split(client);
    let (from_upstream, to_upstream) = tokio::io::split(upstream);
    let inward = Box::pin(copy(from_client, to_upstream, &meter, Way::ToPod));
    let outward = Box::pin(copy(from_upstream, to_client, &meter, Way::ToClient));
    let moving = async {
        match future::select(inward, outward).await {
            // The runtime has said all. The client closes when it has read it.
            Either::Right((Ok(()), inward)) => {
                let _ = tokio::time::timeout(limits.linger, inward).await;
                End::Done
            }
            // The client has gone, and what the runtime still says nobody reads; or it takes nothing more.
            Either::Left(_) | Either::Right((Err(()), _)) => End::ClientGone,
        }
    };
    let end = tokio::select! {
        biased;
        end = moving => end,
        () = meter.idle(limits.idle()) => End::Idle,
    };
    meter.outcome(end)
}

async fn copy<A, B>(mut from: ReadHalf<A>, mut to: WriteHalf<B>, meter: &Meter, way: Way) -> Result<(), ()>
where
    A: AsyncRead,
    B: AsyncWrite,
{
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await.map_err(drop)?;
        if read == 0 {
            return to.shutdown().await.map_err(drop);
        }
        to.write_all(&buffer[..read]).await.map_err(drop)?;
        to.flush().await.map_err(drop)?;
        way.count(meter, read);
    }
}
