//! The framing of commands on the service's WebSocket. The vendor documents none of it; this is what users of the service report.
//!
//! | message | meaning |
//! |---|---|
//! | binary, first byte 0 | standard input |
//! | binary, first byte 1 or 2 | standard output or error |
//! | binary, first byte 3 | the end: a `Status` in JSON with the exit code, or the text of an error |
//! | binary, first byte 4 | the terminal's size, to the service |
//! | binary, 255 and 0 | the end of standard input, to the service, as in version 5 of Kubernetes' protocol |
//! | text | output, without a first byte |
//! | close | the end; without a status before it, of a command that has succeeded |
//!
//! Everything else is logged and ignored.

use std::{pin::pin, time::Duration};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, interval_at},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message, protocol::frame::coding::CloseCode},
};
use tracing::{debug, info};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// The status of a command that has succeeded.
const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;
/// How often the connection is tested: gateways close idle ones.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long a service that takes no more input may go on to speak.
const REST: Duration = Duration::from_secs(10);

/// What a message of the service means.
#[derive(Debug, PartialEq, Eq)]
enum Received {
    /// Output, for the client.
    Output(Bytes),
    /// How the command has ended.
    Status(Bytes),
    /// Nothing.
    Nothing,
    /// The end of the connection, in order.
    Closed,
    /// The end of the connection, not in order.
    Lost,
}

/// Why nothing more is sent to the service.
enum SendEnd {
    ClientGone,
    ServiceGone,
}

/// Moves messages between the service and a client that speaks version 5 of Kubernetes' protocol, until either has gone.
pub(super) async fn translate<Remote, Local>(remote: WebSocketStream<Remote>, local: WebSocketStream<Local>)
where
    Remote: AsyncRead + AsyncWrite + Send + Unpin,
    Local: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (mut to_remote, from_remote) = remote.split();
    let (mut to_local, from_local) = local.split();
    let in_order = {
        let mut receiving = pin!(receive(from_remote, &mut to_local));
        tokio::select! {
            in_order = &mut receiving => in_order,
            end = send(from_local, &mut to_remote) => match end {
                SendEnd::ClientGone => true,
                // It takes no input any more, but what it has said may not be read yet.
                SendEnd::ServiceGone => tokio::time::timeout(REST, receiving).await.unwrap_or(false),
            },
        }
    };
    let closing = async {
        // The service ends a command whose connection has gone.
        let _ = to_remote.close().await;
        if in_order {
            let _ = to_local.close().await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), closing).await;
}

/// From the service to the client. Returns whether the connection has ended in order.
async fn receive<I, O>(mut messages: I, client: &mut O) -> bool
where
    I: Stream<Item = Result<Message, Error>> + Unpin,
    O: Sink<Message, Error = Error> + Unpin,
{
    let mut has_status = false;
    loop {
        let message = match decode(messages.next().await) {
            Received::Output(bytes) => bytes,
            Received::Status(_) if has_status => continue,
            Received::Status(text) => {
                has_status = true;
                frame(STATUS, &text)
            }
            Received::Nothing => continue,
            Received::Closed => {
                if !has_status {
                    let _ = client.send(Message::Binary(frame(STATUS, SUCCESS))).await;
                }
                return true;
            }
            Received::Lost => return has_status,
        };
        if client.send(Message::Binary(message)).await.is_err() {
            return true;
        }
    }
}

fn decode(message: Option<Result<Message, Error>>) -> Received {
    let bytes = match message {
        Some(Ok(Message::Binary(bytes))) => bytes,
        Some(Ok(Message::Text(text))) => {
            return if text.is_empty() {
                Received::Nothing
            } else {
                Received::Output(frame(STDOUT, text.as_bytes()))
            };
        }
        Some(Ok(Message::Close(None)) | Err(Error::ConnectionClosed)) => return Received::Closed,
        Some(Ok(Message::Close(Some(close)))) => {
            let in_order = matches!(close.code, CloseCode::Normal | CloseCode::Away | CloseCode::Status);
            return if in_order { Received::Closed } else { Received::Lost };
        }
        Some(Ok(_)) => return Received::Nothing,
        Some(Err(error)) => {
            debug!(%error, "the connection of a command was lost");
            return Received::Lost;
        }
        None => return Received::Lost,
    };
    match bytes.first() {
        None => Received::Nothing,
        Some(&(STDOUT | STDERR)) => Received::Output(bytes),
        Some(&STATUS) => status(&bytes[1..]),
        Some(channel) => {
            info!(channel, bytes = bytes.len() - 1, "a command has sent a message on an unknown channel");
            Received::Nothing
        }
    }
}

/// A status in JSON as it is, and any other text as the status of a failure.
fn status(text: &[u8]) -> Received {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Received::Nothing;
    }
    let json = serde_json::from_slice::<serde_json::Value>(text);
    if json.is_ok_and(|json| json.get("status").is_some()) {
        return Received::Status(Bytes::copy_from_slice(text));
    }
    let message: String = String::from_utf8_lossy(text).trim().chars().take(1000).collect();
    let failure = serde_json::json!({
        "metadata": {}, "status": "Failure", "reason": "InternalError", "message": message,
    });
    Received::Status(Bytes::from(failure.to_string()))
}

/// From the client to the service. Returns who has gone.
async fn send<I, O>(mut messages: I, service: &mut O) -> SendEnd
where
    I: Stream<Item = Result<Message, Error>> + Unpin,
    O: Sink<Message, Error = Error> + Unpin,
{
    let mut pings = interval_at(Instant::now() + KEEPALIVE, KEEPALIVE);
    loop {
        let message = tokio::select! {
            message = messages.next() => match message {
                Some(Ok(Message::Binary(bytes))) if is_for_the_service(&bytes) => Message::Binary(bytes),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return SendEnd::ClientGone,
                Some(Ok(_)) => continue,
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if service.send(message).await.is_err() {
            return SendEnd::ServiceGone;
        }
    }
}

fn is_for_the_service(bytes: &[u8]) -> bool {
    match bytes {
        [STDIN, data @ ..] => !data.is_empty(),
        [RESIZE, ..] => true,
        [CLOSE, channel] => *channel == STDIN,
        _ => false,
    }
}

fn frame(channel: u8, bytes: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(bytes.len() + 1);
    framed.put_u8(channel);
    framed.put_slice(bytes);
    framed.freeze()
}
