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
    state::{Core, Reply, Role, Shared, Side, State},
    stream::Stream,
};

/// One side of a SPDY/3.1 connection: takes the peer's streams, and opens its own.
///
/// Every method takes `&self`; put it in an `Arc` to share it. Dropping it ends the connection at once, with all its streams;
/// [`close`](Self::close) ends it in order.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
}

impl Connection {
    /// The side that was called. Nothing happens until the driver is polled.
    pub fn server<IO: AsyncRead + AsyncWrite + Unpin>(io: IO, config: Config) -> (Self, Driver<IO>) {
        Self::new(Role::Server, io, config)
    }

    /// The side that calls. Nothing happens until the driver is polled.
    pub fn client<IO: AsyncRead + AsyncWrite + Unpin>(io: IO, config: Config) -> (Self, Driver<IO>) {
        Self::new(Role::Client, io, config)
    }

    fn new<IO>(role: Role, io: IO, config: Config) -> (Self, Driver<IO>) {
        let shared = Shared::new(role, config);
        (Self { shared: Arc::clone(&shared) }, Driver::new(io, shared))
    }

    /// The next stream that the peer wants to open; `None` when there will be no more because the peer or this side takes its
    /// leave, and an error when the connection broke. Nothing is lost when the future is dropped.
    pub async fn accept(&self) -> Result<Option<Incoming>, Error> {
        loop {
            let arrived = self.shared.accept.notified();
            let answer = self.shared.with(|state| {
                if let Some(entry) = state.take_incoming() {
                    let core = Arc::clone(&entry.core);
                    if !state.backlog.is_empty() {
                        state.signals.arrived();
                    }
                    return Some(Ok(Some(core)));
                }
                if state.is_open() && !state.gone_away {
                    return None;
                }
                Some(state.failure().map_or(Ok(None), Err))
            });
            match answer {
                Some(Ok(Some(core))) => {
                    return Ok(Some(Incoming { core, shared: Some(Arc::clone(&self.shared)) }));
                }
                Some(Ok(None)) => return Ok(None),
                Some(Err(error)) => return Err(error),
                None => arrived.await,
            }
        }
    }

    /// Opens a stream, and waits until the peer has accepted it: Go throws away what arrives before that. There is no time limit;
    /// dropping the future resets the stream.
    pub async fn open(&self, headers: &Headers) -> Result<Stream, Error> {
        let core = self.shared.with(|state| {
            state.open(headers, |id| {
                Arc::new(Core { id, headers: headers.clone(), priority: 0, over: Notify::new() })
            })
        })?;
        let id = core.id;
        let stream = Stream::new(Arc::clone(&self.shared), core);
        poll_fn(|context| {
            self.shared.with(|state| {
                let Some(entry) = state.streams.get_mut(&id) else { return Poll::Ready(Err(Error::Closed)) };
                match (&entry.reply, &entry.local) {
                    (Reply::Awaited, Side::Lost(error)) => Poll::Ready(Err(error.clone())),
                    (Reply::Awaited, _) => {
                        state.signals.register(&mut entry.read_waker, context.waker());
                        Poll::Pending
                    }
                    _ => Poll::Ready(Ok(())),
                }
            })
        })
        .await?;
        Ok(stream)
    }

    /// Sends a PING and waits for it to come back; answers how long that took.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let sent = Instant::now();
        let came_back = self.shared.with(State::ping)?;
        match came_back.await {
            Ok(()) => Ok(sent.elapsed()),
            Err(_) => Err(self.shared.with(|state| state.reason())),
        }
    }

    /// Ends the connection in order: what is queued is written, streams that are not finished are reset, GOAWAY is sent, and the
    /// peer has [`linger`](Config::linger) to close its side. Ready when the connection has ended.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.with(|state| state.begin_close(Ok(())));
        self.ended().await
    }

    /// Waits for the end of the connection, whoever brings it about: `Ok` if one of the sides closed it between two frames.
    pub async fn ended(&self) -> Result<(), Error> {
        loop {
            let ended = self.shared.ended.notified();
            if let Some(result) = self.shared.with(|state| state.result()) {
                return result;
            }
            ended.await;
        }
    }

    /// Whether the connection has ended.
    pub fn is_ended(&self) -> bool {
        self.shared.with(|state| state.result().is_some())
    }

    /// How many streams there are, of both sides: those that somebody holds, and those that wait to be accepted.
    pub fn streams(&self) -> usize {
        self.shared.with(|state| state.streams.len())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.with(State::abandon);
    }
}

/// A stream that the peer wants to open. It has not been answered: do that at once, for a client of Kubernetes waits for the answer
/// before it opens the next. Dropping it refuses it.
#[derive(Debug)]
pub struct Incoming {
    core: Arc<Core>,
    /// Unset when it has been answered.
    shared: Option<Arc<Shared>>,
}

impl Incoming {
    /// Its number.
    pub fn id(&self) -> StreamId {
        self.core.id
    }

    /// What it is for.
    pub fn headers(&self) -> &Headers {
        &self.core.headers
    }

    /// How urgent it is, from 0 to 7.
    pub fn priority(&self) -> u8 {
        self.core.priority
    }

    /// Accepts it, with nothing more to say.
    pub fn accept(self) -> Stream {
        match self.accept_with(&Headers::new()) {
            Ok(stream) => stream,
            // No headers fit into every frame.
            Err(error) => unreachable!("an answer without headers: {error}"),
        }
    }

    /// Accepts it with headers. That fails only if they do not fit into a frame; the stream is then refused.
    pub fn accept_with(mut self, headers: &Headers) -> Result<Stream, Error> {
        let id = self.core.id;
        let Some(shared) = self.shared.take() else { return Err(Error::Closed) };
        // From here on the stream's own drop is in charge.
        let stream = Stream::new(Arc::clone(&shared), Arc::clone(&self.core));
        shared.with(|state| {
            if let Some(entry) = state.streams.get_mut(&id) {
                entry.reply = Reply::Sent;
                let owes = entry.local.is_open();
                let reply = Frame::SynReply { id, headers: headers.clone(), fin: false };
                // A stream that is over gets no answer, nor one that is not to be answered; its user finds out by using it.
                if owes && let Err(error @ Error::Encode(_)) = state.control(&reply) {
                    return Err(error);
                }
            }
            Ok(())
        })?;
        Ok(stream)
    }

    /// Resets it, with a status that says why.
    pub fn refuse(mut self, status: ResetStatus) {
        self.end(status);
    }

    fn end(&mut self, status: ResetStatus) {
        if let Some(shared) = self.shared.take() {
            shared.with(|state| state.forget(self.core.id, status));
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.end(ResetStatus::RefusedStream);
    }
}
