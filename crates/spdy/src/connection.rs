//! One side of a connection.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::Instant,
};

use crate::{
    Config, Driver, Error,
    codec::{Frame, Headers, ResetStatus, StreamId},
    state::{ConnectionHandle, ConnectionState, HalfState, ReplyState, Role, StreamCore},
    stream::Stream,
};

/// One side of a SPDY/3.1 connection: accepts the peer's streams and opens its own.
///
/// All methods take `&self`; share it in an `Arc`. Dropping it aborts the connection with all its streams;
/// [`close`](Self::close) closes it in an orderly way.
#[derive(Debug)]
pub struct Connection {
    handle: Arc<ConnectionHandle>,
}

impl Connection {
    /// The server side. Nothing happens until the driver is polled.
    pub fn server<IO: AsyncRead + AsyncWrite + Unpin>(io: IO, config: Config) -> (Self, Driver<IO>) {
        Self::new(Role::Server, io, config)
    }

    /// The client side. Nothing happens until the driver is polled.
    pub fn client<IO: AsyncRead + AsyncWrite + Unpin>(io: IO, config: Config) -> (Self, Driver<IO>) {
        Self::new(Role::Client, io, config)
    }

    fn new<IO>(role: Role, io: IO, config: Config) -> (Self, Driver<IO>) {
        let handle = ConnectionHandle::new(role, config);
        (Self { handle: Arc::clone(&handle) }, Driver::new(io, handle))
    }

    /// The next stream that the peer wants to open; `None` if there will be no more because either side is closing, and an error if the
    /// connection failed. Cancel-safe.
    pub async fn accept(&self) -> Result<Option<Incoming>, Error> {
        loop {
            let arrived = self.handle.accept.notified();
            let answer = self.handle.with(|state| {
                if let Some(stream) = state.take_incoming() {
                    let core = Arc::clone(&stream.core);
                    if !state.backlog.is_empty() {
                        state.wakeups.arrived();
                    }
                    return Some(Ok(Some(core)));
                }
                if state.is_open() && !state.received_go_away {
                    return None;
                }
                Some(state.failure().map_or(Ok(None), Err))
            });
            match answer {
                Some(Ok(Some(core))) => {
                    return Ok(Some(Incoming { core, handle: Some(Arc::clone(&self.handle)) }));
                }
                Some(Ok(None)) => return Ok(None),
                Some(Err(error)) => return Err(error),
                None => arrived.await,
            }
        }
    }

    /// Opens a stream and waits until the peer has accepted it: Go drops data that arrives earlier. There is no time limit; dropping
    /// the future resets the stream.
    pub async fn open(&self, headers: &Headers) -> Result<Stream, Error> {
        let core = self.handle.with(|state| {
            state.open(headers, |id| {
                Arc::new(StreamCore { id, headers: headers.clone(), priority: 0, closed: Notify::new() })
            })
        })?;
        let id = core.id;
        let stream = Stream::new(Arc::clone(&self.handle), core);
        poll_fn(|context| {
            self.handle.with(|state| {
                let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Err(Error::Closed)) };
                match (&stream.reply, &stream.local) {
                    (ReplyState::Awaited, HalfState::Failed(error)) => Poll::Ready(Err(error.clone())),
                    (ReplyState::Awaited, _) => {
                        state.wakeups.register(&mut stream.read_waker, context.waker());
                        Poll::Pending
                    }
                    _ => Poll::Ready(Ok(())),
                }
            })
        })
        .await?;
        Ok(stream)
    }

    /// Sends a PING and waits for the reply. Returns the round-trip time.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let sent = Instant::now();
        let came_back = self.handle.with(ConnectionState::ping)?;
        match came_back.await {
            Ok(()) => Ok(sent.elapsed()),
            Err(_) => Err(self.handle.with(|state| state.reason())),
        }
    }

    /// Closes the connection in an orderly way: writes what is queued, resets unfinished streams, sends GOAWAY, and gives the peer
    /// [`linger`](Config::linger) to close its side. Resolves when the connection has ended.
    pub async fn close(&self) -> Result<(), Error> {
        self.handle.with(|state| state.start_close(Ok(())));
        self.ended().await
    }

    /// Waits for the end of the connection: `Ok` if one of the sides closed it between two frames.
    pub async fn ended(&self) -> Result<(), Error> {
        loop {
            let ended = self.handle.ended.notified();
            if let Some(result) = self.handle.with(|state| state.result()) {
                return result;
            }
            ended.await;
        }
    }

    /// Whether the connection has ended.
    pub fn is_ended(&self) -> bool {
        self.handle.with(|state| state.result().is_some())
    }

    /// The number of streams of both sides, including those that are not accepted yet.
    pub fn streams(&self) -> usize {
        self.handle.with(|state| state.streams.len())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.handle.with(ConnectionState::drop_connection);
    }
}

/// A stream that the peer wants to open. Answer it at once: Kubernetes clients wait for the reply before they open the next.
/// Dropping it rejects it.
#[derive(Debug)]
pub struct Incoming {
    core: Arc<StreamCore>,
    /// Unset once it is answered.
    handle: Option<Arc<ConnectionHandle>>,
}

impl Incoming {
    /// The stream's ID.
    pub fn id(&self) -> StreamId {
        self.core.id
    }

    /// The stream's headers.
    pub fn headers(&self) -> &Headers {
        &self.core.headers
    }

    /// The stream's priority, from 0 to 7.
    pub fn priority(&self) -> u8 {
        self.core.priority
    }

    /// Accepts it.
    pub fn accept(self) -> Stream {
        match self.accept_with(&Headers::new()) {
            Ok(stream) => stream,
            // A reply without headers fits into a frame.
            Err(error) => unreachable!("a reply without headers: {error}"),
        }
    }

    /// Accepts it with headers. Fails only if they do not fit into a frame; the stream is then rejected.
    pub fn accept_with(mut self, headers: &Headers) -> Result<Stream, Error> {
        let id = self.core.id;
        let Some(handle) = self.handle.take() else { return Err(Error::Closed) };
        // From here on the stream's own drop is responsible.
        let stream = Stream::new(Arc::clone(&handle), Arc::clone(&self.core));
        handle.with(|state| {
            if let Some(stream) = state.streams.get_mut(&id) {
                stream.reply = ReplyState::Sent;
                let owes = stream.local.is_open();
                let reply = Frame::SynReply { id, headers: headers.clone(), fin: false };
                // A closed or unidirectional stream gets no reply; its user notices when using it.
                if owes && let Err(error @ Error::Encode(_)) = state.send_control(&reply) {
                    return Err(error);
                }
            }
            Ok(())
        })?;
        Ok(stream)
    }

    /// Resets it with this status.
    pub fn reject(mut self, status: ResetStatus) {
        self.end(status);
    }

    fn end(&mut self, status: ResetStatus) {
        if let Some(handle) = self.handle.take() {
            handle.with(|state| state.release(self.core.id, status));
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.end(ResetStatus::RefusedStream);
    }
}
