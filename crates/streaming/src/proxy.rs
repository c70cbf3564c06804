//! Proxies a provider's URL byte for byte, for protocols that container runtimes speak.

use bytes::Bytes;
use futures::future::{self, Either};
use http::{HeaderName, HeaderValue, Request, Response, header, request::Parts};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use vk_provider::{Error, Result, ability::BoxDuplex};

use crate::{
    activity::ActivityTracker,
    client::{self, UpgradeResponse},
    limits::{SessionEnd, SessionLimits, SessionOutcome},
    negotiation::STREAM_PROTOCOL,
    stream::Direction,
};

/// The headers of a handshake. No other header of the client's request is forwarded to the runtime, least of all its credentials.
const FORWARDED_HEADERS: [HeaderName; 7] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
    STREAM_PROTOCOL,
];

/// The upstream server's response to the client's request.
pub enum Upstream {
    /// It switches protocols: send this response to the client, then call [`splice`].
    Switched {
        /// The response.
        response: Response<()>,
        /// The connection.
        io: BoxDuplex,
    },
    /// It does not: send this response to the client.
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

/// Sends the client's handshake to a URL.
pub async fn open(url: &str, parts: &Parts, limits: &SessionLimits) -> Result<Upstream> {
    let uri = client::uri(url)?;
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let unusable = || Error::invalid("build a request for a streaming URL");
    *request.uri_mut() = path.parse().map_err(|error| unusable().caused_by(error))?;
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::try_from(host).map_err(|error| unusable().caused_by(error))?;
    request.headers_mut().insert(header::HOST, host);
    for name in FORWARDED_HEADERS {
        for value in parts.headers.get_all(&name) {
            request.headers_mut().append(name.clone(), value.clone());
        }
    }
    let io = client::connect(&uri, limits).await?;
    Ok(match client::send_upgrade(io, request, limits).await? {
        UpgradeResponse::Switched(response, io) => Upstream::Switched { response, io: Box::new(io) },
        UpgradeResponse::Rejected(response) => Upstream::Answered(response),
    })
}

/// Copies bytes both ways until both directions have ended, one side disconnects, or the session is idle for too long.
pub async fn splice<A, B>(client: A, upstream: B, limits: &SessionLimits) -> SessionOutcome
where
    A: AsyncRead + AsyncWrite + Send + Unpin,
    B: AsyncRead + AsyncWrite + Send + Unpin,
{
    let activity = ActivityTracker::new();
    let (from_client, to_client) = tokio::io::split(client);
    let (from_upstream, to_upstream) = tokio::io::split(upstream);
    let inward = Box::pin(copy(from_client, to_upstream, &activity, Direction::ToPod));
    let outward = Box::pin(copy(from_upstream, to_client, &activity, Direction::ToClient));
    let moving = async {
        match future::select(inward, outward).await {
            // The runtime has sent everything. The client closes when it has read it.
            Either::Right((Ok(()), inward)) => {
                let _ = tokio::time::timeout(limits.linger, inward).await;
                SessionEnd::Done
            }
            // The client has disconnected, or takes nothing more.
            Either::Left(_) | Either::Right((Err(()), _)) => SessionEnd::ClientGone,
        }
    };
    let end = tokio::select! {
        biased;
        end = moving => end,
        () = activity.idle(limits.idle()) => SessionEnd::Idle,
    };
    activity.outcome(end)
}

async fn copy<A, B>(
    mut from: ReadHalf<A>,
    mut to: WriteHalf<B>,
    activity: &ActivityTracker,
    direction: Direction,
) -> Result<(), ()>
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
        direction.count(activity, read);
    }
}
