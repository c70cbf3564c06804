//! A byte stream in WebSocket messages, as in `SPDY/3.1+portforward.k8s.io`. Message boundaries have no meaning.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures::{Sink as _, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        error::ProtocolError,
        protocol::{Role, frame::coding::CloseCode},
    },
};

use super::websocket;
use crate::limits::SessionLimits;

/// The largest message that we send.
const MAX_MESSAGE: usize = 64 << 10;

/// Reads and writes bytes through a WebSocket.
#[derive(Debug)]
pub(crate) struct WebSocketTunnel<IO> {
    socket: WebSocketStream<IO>,
    /// Received and not read yet.
    unread: Bytes,
    closing: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocketTunnel<IO> {
    pub(crate) async fn new(io: IO, role: Role, limits: &SessionLimits) -> Self {
        let socket = WebSocketStream::from_raw_socket(io, role, Some(websocket::config(limits))).await;
        Self { socket, unread: Bytes::new(), closing: false }
    }

    fn socket(&mut self) -> Pin<&mut WebSocketStream<IO>> {
        Pin::new(&mut self.socket)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocketTunnel<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.socket().poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(invalid(
                        "a text message in a tunnel: only binary messages are allowed",
                    )));
                }
                Some(Ok(Message::Close(Some(close))))
                    if !matches!(close.code, CloseCode::Normal | CloseCode::Away | CloseCode::Status) =>
                {
                    return Poll::Ready(Err(invalid(format!(
                        "closed with code {}: {}",
                        close.code, close.reason
                    ))));
                }
                Some(
                    Ok(Message::Close(_)) | Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)),
                )
                | None => return Poll::Ready(Ok(())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let length = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..length]);
        self.unread.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocketTunnel<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.socket().poll_ready(cx)).map_err(broken)?;
        let length = bytes.len().min(MAX_MESSAGE);
        let message = Message::Binary(Bytes::copy_from_slice(&bytes[..length]));
        self.socket().start_send(message).map_err(broken)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_flush(cx).map_err(broken)
    }

    /// Sends a close message. Without it a client takes the end of the connection for a loss.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            match ready!(self.socket().poll_ready(cx))
                .and_then(|()| self.socket().start_send(websocket::close_message()))
            {
                Ok(()) | Err(Error::ConnectionClosed | Error::Protocol(ProtocolError::SendAfterClosing)) => {}
                Err(error) => return Poll::Ready(Err(broken(error))),
            }
            self.closing = true;
        }
        self.socket().poll_flush(cx).map_err(broken)
    }
}

fn invalid(wrong: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, wrong.into())
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}
