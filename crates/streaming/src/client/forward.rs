//! Ports of a pod through another server.

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
    handshake::{self, Offer},
    task::{Task, With},
};
use crate::{
    forward::Protocol,
    limits::Limits,
    spdy::{self, DATA, ERROR, PORT, REQUEST_ID, STREAM_TYPE},
    wire::{self, Input, Output, tunnel::Tunnel, websocket::Channels},
};

/// What waits in a connection.
const BUFFER: usize = 64 << 10;
/// The most that is kept of what a server says about a connection.
const LONGEST_ERROR: usize = 16 << 10;

/// A connection to a server that forwards to the ports of a pod.
#[derive(Debug)]
pub struct Forwarder {
    carrier: Carrier,
    task: Task,
    limits: Limits,
}

#[derive(Debug)]
enum Carrier {
    Spdy { connection: Arc<Connection>, requests: AtomicU64 },
    Channels(Mutex<HashMap<u16, Port>>),
}

/// The channels of a port.
#[derive(Debug)]
struct Port {
    input: Input,
    output: Output,
    error: Input,
}

/// [`forward`](super::forward()) over a connection that stands already. `ports` are those of the request's query, for the protocols in which
/// they stand there.
pub async fn forward_over<IO>(
    io: IO,
    request: Request<()>,
    protocol: Protocol,
    ports: &[u16],
    limits: &Limits,
) -> Result<Forwarder>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let offers = [protocol.name()];
    let offer = match protocol {
        Protocol::Spdy => Offer::spdy(&offers),
        _ => Offer::websocket(&offers),
    };
    let (taken, io) = handshake::agree(io, request, &offer, limits).await?;
    if taken != protocol.name() {
        let message =
            format!("choose a port-forward protocol: we offered {offers:?}, and the server took {taken:?}");
        return Err(Error::internal(message));
    }
    Ok(forward_upgraded(io, protocol, ports, limits).await)
}

/// [`forward`](super::forward()) over a connection that speaks this protocol already. `ports` as for [`forward_over`].
pub async fn forward_upgraded<IO>(io: IO, protocol: Protocol, ports: &[u16], limits: &Limits) -> Forwarder
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match protocol {
        Protocol::Spdy => over_spdy(io, limits),
        Protocol::Tunnel => over_spdy(Tunnel::new(io, Role::Client, limits).await, limits),
        Protocol::Channels | Protocol::ChannelsBase64 => {
            let count = ports.len() * 2;
            let mut channels = Channels::new(io, Role::Client, protocol.codec(), count, limits).await;
            let numbers = (0_u8..=254).step_by(2);
            let ports = ports.iter().zip(numbers).map(|(&port, number)| {
                let (input, error) = (channels.input(number), channels.input(number + 1));
                (port, Port { input, output: channels.output(number), error })
            });
            let carrier = Carrier::Channels(Mutex::new(ports.collect()));
            let driving = async move {
                channels.drive().await.close().await;
            };
            Forwarder { carrier, task: Task::start(driving), limits: limits.clone() }
        }
    }
}

fn over_spdy<IO>(io: IO, limits: &Limits) -> Forwarder
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (connection, driver) = Connection::client(io, spdy::config(limits));
    let connection = Arc::new(connection);
    let (beside, keepalive) = (Arc::clone(&connection), limits.keepalive);
    let task = Task::start(async move {
        let beside = future::join(spdy::refuse_others(&beside), spdy::keep_alive(&beside, keepalive));
        let _ = future::select(Box::pin(driver), Box::pin(beside)).await;
    });
    let carrier = Carrier::Spdy { connection, requests: AtomicU64::new(0) };
    Forwarder { carrier, task, limits: limits.clone() }
}

impl Forwarder {
    /// A connection to a port. Where the protocol fixes the ports beforehand, there is one for each. What the server says
    /// about a connection that it could not make is an error of reading.
    pub async fn open(&self, port: u16) -> Result<BoxDuplex> {
        let (stream, mut error) = self.pair(port).await?;
        let half_close = matches!(self.carrier, Carrier::Spdy { .. });
        let told = async move { error.all(LONGEST_ERROR).await.0 };
        Ok(Box::new(Opened { stream, told: told.boxed().fuse(), half_close }))
    }

    /// The bytes of a connection, and what the server says about it.
    pub(crate) async fn pair(&self, port: u16) -> Result<(BoxDuplex, Input)> {
        let failed = || Error::unavailable(format!("forward port {port}"));
        match &self.carrier {
            Carrier::Spdy { connection, requests } => {
                let request = requests.fetch_add(1, Ordering::Relaxed).to_string();
                let headers = |kind| {
                    let headers = Headers::new().with(STREAM_TYPE, kind).with(PORT, &port.to_string());
                    headers.with(REQUEST_ID, &request)
                };
                let opening = async {
                    let (error, mut unused) = connection.open(&headers(ERROR)).await?.split();
                    unused.finish()?;
                    io::Result::Ok((Input::Spdy(error), connection.open(&headers(DATA)).await))
                };
                let (mut error, stream) = timeout(self.limits.creation, opening)
                    .await
                    .map_err(|elapsed| failed().caused_by(elapsed))?
                    .map_err(|error| failed().caused_by(error))?;
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(reset) => {
                        // A server that has no connection to give may reset the stream before it has accepted it.
                        let told = timeout(self.limits.linger, error.all(LONGEST_ERROR)).await;
                        return Err(match told {
                            Ok((told, _)) if !told.is_empty() => {
                                failed().caused_by(String::from_utf8_lossy(&told).into_owned())
                            }
                            _ => failed().caused_by(reset),
                        });
                    }
                };
                Ok((Box::new(With { stream, _task: self.task.clone() }), error))
            }
            Carrier::Channels(ports) => {
                let taken = ports.lock().remove(&port);
                let Port { mut input, output, mut error } = taken.ok_or_else(|| {
                    Error::invalid(format!("forward port {port}: it was not asked for, or is open already"))
                })?;
                let beginning = async { (number(&mut input).await, number(&mut error).await) };
                let began = timeout(self.limits.creation, beginning)
                    .await
                    .map_err(|elapsed| failed().caused_by(elapsed))?;
                if began != (Some(port), Some(port)) {
                    let message = format!("forward port {port}: the server's channels begin with {began:?}");
                    return Err(Error::internal(message));
                }
                let (ours, theirs) = duplex(BUFFER);
                let carrier = self.task.clone();
                let task = Task::start(async move {
                    let (from, to) = tokio::io::split(theirs);
                    future::join(wire::send_all(from, output), wire::receive_all(input, to)).await;
                    drop(carrier);
                });
                Ok((Box::new(With { stream: ours, _task: task }), error))
            }
        }
    }
}

/// The port with which a channel begins.
async fn number(input: &mut Input) -> Option<u16> {
    let bytes = input.next().await.ok()??;
    Some(u16::from_le_bytes(bytes[..].try_into().ok()?))
}

/// A connection whose reads tell what the server said about it.
struct Opened {
    stream: BoxDuplex,
    told: Fuse<BoxFuture<'static, Vec<u8>>>,
    /// Whether one direction can end without the other.
    half_close: bool,
}

impl AsyncRead for Opened {
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
        if self.told.is_terminated() {
            return read;
        }
        match self.told.poll_unpin(cx) {
            Poll::Ready(told) if !told.is_empty() => {
                let text = String::from_utf8_lossy(&told).into_owned();
                return Poll::Ready(Err(io::Error::other(text)));
            }
            // What broke the connection will be said.
            Poll::Pending if matches!(read, Poll::Ready(Err(_))) || !self.half_close => return Poll::Pending,
            Poll::Ready(_) | Poll::Pending => {}
        }
        read
    }
}

impl AsyncWrite for Opened {
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
