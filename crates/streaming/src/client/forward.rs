//! Port-forwarding through another server.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use futures::{
    FutureExt as _,
    future::{self, BoxFuture, Fuse, FusedFuture as _},
};
use http::Request;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, duplex},
    time::timeout,
};
use tokio_tungstenite::tungstenite::protocol::Role;
use vk_provider::{Error, Result, ability::BoxDuplex};
use vk_spdy::{Connection, Headers};

use super::{
    handshake::{self, ProtocolOffer},
    task::{BackgroundTask, TaskStream},
};
use crate::{
    forward::Protocol,
    limits::SessionLimits,
    spdy::{self, DATA, ERROR, PORT, REQUEST_ID, STREAM_TYPE},
    stream::{self, StreamReader, StreamWriter, tunnel::WebSocketTunnel, websocket::WebSocketChannels},
};

/// Buffer of a connection.
const BUFFER: usize = 64 << 10;
/// Limit of an error text of the server.
const MAX_ERROR: usize = 16 << 10;

/// A connection to a server that forwards to a pod's ports.
#[derive(Debug)]
pub struct Forwarder {
    transport: ForwardTransport,
    task: BackgroundTask,
    limits: SessionLimits,
}

#[derive(Debug)]
enum ForwardTransport {
    Spdy { connection: Arc<Connection>, requests: AtomicU64 },
    Channels(Mutex<HashMap<u16, PortChannels>>),
}

/// The channels of a port.
#[derive(Debug)]
struct PortChannels {
    input: StreamReader,
    output: StreamWriter,
    error: StreamReader,
}

/// [`forward`](super::forward()) over an existing connection. `ports` are those in the request's query, for protocols that use them.
pub async fn forward_over<IO>(
    io: IO,
    request: Request<()>,
    protocol: Protocol,
    ports: &[u16],
    limits: &SessionLimits,
) -> Result<Forwarder>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let offers = [protocol.name()];
    let offer = match protocol {
        Protocol::Spdy => ProtocolOffer::spdy(&offers),
        _ => ProtocolOffer::websocket(&offers),
    };
    let (selected, io) = handshake::negotiate(io, request, &offer, limits).await?;
    if selected != protocol.name() {
        let message = format!(
            "choose a port-forward protocol: we offered {offers:?}, and the server selected {selected:?}"
        );
        return Err(Error::internal(message));
    }
    Ok(forward_upgraded(io, protocol, ports, limits).await)
}

/// [`forward`](super::forward()) over a connection that was upgraded to this protocol. `ports` as in [`forward_over`].
pub async fn forward_upgraded<IO>(
    io: IO,
    protocol: Protocol,
    ports: &[u16],
    limits: &SessionLimits,
) -> Forwarder
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match protocol {
        Protocol::Spdy => forwarder_over_spdy(io, limits),
        Protocol::Tunnel => forwarder_over_spdy(WebSocketTunnel::new(io, Role::Client, limits).await, limits),
        Protocol::Channels | Protocol::ChannelsBase64 => {
            let count = ports.len() * 2;
            let mut channels =
                WebSocketChannels::new(io, Role::Client, protocol.codec(), count, limits).await;
            let numbers = (0_u8..=254).step_by(2);
            let ports = ports.iter().zip(numbers).map(|(&port, number)| {
                let (input, error) = (channels.input(number), channels.input(number + 1));
                (port, PortChannels { input, output: channels.output(number), error })
            });
            let transport = ForwardTransport::Channels(Mutex::new(ports.collect()));
            let driving = async move {
                channels.drive().await.close().await;
            };
            Forwarder { transport, task: BackgroundTask::start(driving), limits: limits.clone() }
        }
    }
}

fn forwarder_over_spdy<IO>(io: IO, limits: &SessionLimits) -> Forwarder
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (connection, driver) = Connection::client(io, spdy::config(limits));
    let connection = Arc::new(connection);
    let (background, keepalive) = (Arc::clone(&connection), limits.keepalive);
    let task = BackgroundTask::start(async move {
        let background =
            future::join(spdy::reject_streams(&background), spdy::keep_alive(&background, keepalive));
        let _ = future::select(Box::pin(driver), Box::pin(background)).await;
    });
    let transport = ForwardTransport::Spdy { connection, requests: AtomicU64::new(0) };
    Forwarder { transport, task, limits: limits.clone() }
}

impl Forwarder {
    /// Connects to a port. If the protocol fixes the ports, each can be opened once. If the server cannot connect, reading fails
    /// with its error.
    pub async fn open(&self, port: u16) -> Result<BoxDuplex> {
        let (stream, mut error) = self.connect_port(port).await?;
        let half_close = matches!(self.transport, ForwardTransport::Spdy { .. });
        let error_text = async move { error.read_all(MAX_ERROR).await.0 };
        Ok(Box::new(ForwardedStream { stream, error_text: error_text.boxed().fuse(), half_close }))
    }

    /// Connects to a port and returns the data stream and the error stream.
    pub(crate) async fn connect_port(&self, port: u16) -> Result<(BoxDuplex, StreamReader)> {
        let failed = || Error::unavailable(format!("forward port {port}"));
        match &self.transport {
            ForwardTransport::Spdy { connection, requests } => {
                let request = requests.fetch_add(1, Ordering::Relaxed).to_string();
                let headers = |kind| {
                    let headers = Headers::new().with(STREAM_TYPE, kind).with(PORT, &port.to_string());
                    headers.with(REQUEST_ID, &request)
                };
                let opening = async {
                    let (error, mut unused) = connection.open(&headers(ERROR)).await?.split();
                    unused.finish()?;
                    io::Result::Ok((StreamReader::Spdy(error), connection.open(&headers(DATA)).await))
                };
                let (mut error, stream) = timeout(self.limits.creation, opening)
                    .await
                    .map_err(|elapsed| failed().caused_by(elapsed))?
                    .map_err(|error| failed().caused_by(error))?;
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(reset) => {
                        // A server that cannot connect may reset the stream before it has accepted it.
                        let error_text = timeout(self.limits.linger, error.read_all(MAX_ERROR)).await;
                        return Err(match error_text {
                            Ok((error_text, _)) if !error_text.is_empty() => {
                                failed().caused_by(String::from_utf8_lossy(&error_text).into_owned())
                            }
                            _ => failed().caused_by(reset),
                        });
                    }
                };
                Ok((Box::new(TaskStream { stream, _task: self.task.clone() }), error))
            }
            ForwardTransport::Channels(ports) => {
                let selected = ports.lock().remove(&port);
                let PortChannels { mut input, output, mut error } = selected.ok_or_else(|| {
                    Error::invalid(format!("forward port {port}: it was not requested, or is already open"))
                })?;
                let beginning = async { (read_port(&mut input).await, read_port(&mut error).await) };
                let began = timeout(self.limits.creation, beginning)
                    .await
                    .map_err(|elapsed| failed().caused_by(elapsed))?;
                if began != (Some(port), Some(port)) {
                    let message = format!("forward port {port}: the server's channels start with {began:?}");
                    return Err(Error::internal(message));
                }
                let (ours, theirs) = duplex(BUFFER);
                let transport = self.task.clone();
                let task = BackgroundTask::start(async move {
                    let (from, to) = tokio::io::split(theirs);
                    future::join(stream::send_all(from, output), stream::receive_all(input, to)).await;
                    drop(transport);
                });
                Ok((Box::new(TaskStream { stream: ours, _task: task }), error))
            }
        }
    }
}

/// Reads the port with which a channel starts.
async fn read_port(input: &mut StreamReader) -> Option<u16> {
    let bytes = input.next_chunk().await.ok()??;
    Some(u16::from_le_bytes(bytes[..].try_into().ok()?))
}

/// A connection whose reads fail with the server's error.
struct ForwardedStream {
    stream: BoxDuplex,
    error_text: Fuse<BoxFuture<'static, Vec<u8>>>,
    /// Whether one direction can be closed alone.
    half_close: bool,
}

impl AsyncRead for ForwardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() > before {
            return read;
        }
        if self.error_text.is_terminated() {
            return read;
        }
        match self.error_text.poll_unpin(cx) {
            Poll::Ready(error_text) if !error_text.is_empty() => {
                let text = String::from_utf8_lossy(&error_text).into_owned();
                return Poll::Ready(Err(io::Error::other(text)));
            }
            // The error text explains it.
            Poll::Pending if matches!(read, Poll::Ready(Err(_))) || !self.half_close => return Poll::Pending,
            Poll::Ready(_) | Poll::Pending => {}
        }
        read
    }
}

impl AsyncWrite for ForwardedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
