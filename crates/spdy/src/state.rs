//! The connection's state machine, without I/O. The driver, the connection and its streams share it.

mod handle;
mod receive;
mod send_queue;
mod shutdown;
mod stream_state;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

pub(crate) use self::{
    handle::{ConnectionHandle, Wakeups},
    receive::FrameOutcome,
    send_queue::{QueuedFrame, SendQueue},
    stream_state::{HalfState, ReplyState, StreamCore, StreamState},
};
use crate::{
    Config, Error,
    codec::{Encoder, Frame, Headers, ResetStatus, StreamId},
};

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

/// The phase of a connection.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Open.
    Open,
    /// Queued frames are still written, GOAWAY last; then the connection ends with this result.
    Closing(Result<(), Error>),
    /// Ended with this result.
    Ended(Result<(), Error>),
}

/// Why reading is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadBlock {
    /// The buffer of a stream is full.
    Stream(StreamId),
    /// The total buffer is full.
    All,
}

/// The state of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    role: Role,
    pub(crate) config: Config,
    encoder: Encoder,
    pub(crate) phase: Phase,
    pub(crate) streams: HashMap<StreamId, StreamState>,
    /// Streams of the peer that are not accepted yet.
    pub(crate) backlog: VecDeque<StreamId>,
    pub(crate) send_queue: SendQueue,
    pub(crate) driver: Option<Waker>,
    /// Why the driver does not read.
    blocked: Option<ReadBlock>,
    /// Bytes buffered for readers, of all streams.
    buffered: usize,
    /// The peer has sent GOAWAY.
    pub(crate) received_go_away: bool,
    send_failure: Option<Error>,
    /// This side ended the connection.
    closed_locally: bool,
    next_id: StreamId,
    last_peer_id: StreamId,
    peer_streams: usize,
    header_bytes: usize,
    next_ping: u32,
    pings: HashMap<u32, oneshot::Sender<()>>,
    pub(crate) wakeups: Wakeups,
}

impl ConnectionState {
    fn new(role: Role, config: Config) -> Self {
        let first = if role == Role::Client { 1 } else { 2 };
        let send_queue = SendQueue::new(config.send_buffer);
        Self {
            role,
            config,
            encoder: Encoder::new(),
            phase: Phase::Open,
            streams: HashMap::new(),
            backlog: VecDeque::new(),
            send_queue,
            driver: None,
            blocked: None,
            buffered: 0,
            received_go_away: false,
            send_failure: None,
            closed_locally: false,
            next_id: first,
            last_peer_id: 0,
            peer_streams: 0,
            header_bytes: 0,
            next_ping: first,
            pings: HashMap::new(),
            wakeups: Wakeups::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// The result, once the connection has ended.
    pub(crate) fn result(&self) -> Option<Result<(), Error>> {
        if let Phase::Ended(result) = &self.phase { Some(result.clone()) } else { None }
    }

    /// The error for operations that come too late.
    pub(crate) fn reason(&self) -> Error {
        match &self.phase {
            Phase::Open => Error::GoneAway,
            Phase::Closing(Ok(())) => Error::Closed,
            Phase::Ended(Ok(())) if self.closed_locally => Error::Closed,
            Phase::Ended(Ok(())) => Error::PeerClosed,
            Phase::Closing(Err(error)) | Phase::Ended(Err(error)) => error.clone(),
        }
    }

    /// Whether the peer opened this stream.
    fn is_peers(&self, id: StreamId) -> bool {
        (id % 2 == 1) == (self.role == Role::Server)
    }

    pub(crate) fn wake_driver(&mut self) {
        self.wakeups.wakers.extend(self.driver.take());
    }

    /// Queues a control frame. Fails while the connection is closing.
    pub(crate) fn send_control(&mut self, frame: &Frame) -> Result<(), Error> {
        if !self.is_open() {
            return Err(self.reason());
        }
        if let Some(error) = self.send_failure() {
            return Err(error);
        }
        let mut bytes = BytesMut::new();
        self.encoder.encode(frame, &mut bytes)?;
        self.send_queue.push_control(bytes.freeze());
        self.wake_driver();
        Ok(())
    }

    /// Queues a control frame of fixed length. It can fail only if it is not needed any more.
    fn send_short(&mut self, frame: &Frame) {
        let _ = self.send_control(frame);
    }

    pub(crate) fn send_reset(&mut self, id: StreamId, status: ResetStatus) {
        self.send_short(&Frame::RstStream { id, status });
    }

    /// Opens a stream.
    pub(crate) fn open(
        &mut self,
        headers: &Headers,
        core: impl FnOnce(StreamId) -> Arc<StreamCore>,
    ) -> Result<Arc<StreamCore>, Error> {
        if self.received_go_away || !self.is_open() {
            return Err(self.reason());
        }
        let id = self.next_id;
        if id > 0x7fff_ffff {
            return Err(Error::Exhausted);
        }
        let headers = headers.clone();
        let (fin, unidirectional) = (false, false);
        self.send_control(&Frame::SynStream {
            id,
            associated: 0,
            priority: 0,
            headers,
            fin,
            unidirectional,
        })?;
        self.next_id += 2;
        let core = core(id);
        self.streams.insert(id, StreamState::new(Arc::clone(&core), ReplyState::Awaited));
        Ok(core)
    }

    /// Sends a PING; the receiver resolves with the reply.
    pub(crate) fn ping(&mut self) -> Result<oneshot::Receiver<()>, Error> {
        let id = self.next_ping;
        self.send_control(&Frame::Ping(id))?;
        self.next_ping = if id > 0xffff_fffd { id % 2 + 2 } else { id + 2 };
        let (pong, came_back) = oneshot::channel();
        // Callers that gave up leave nothing behind, even if the peer never answers.
        self.pings.retain(|_, pong| !pong.is_closed());
        self.pings.insert(id, pong);
        Ok(came_back)
    }

    /// Why the connection failed, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.phase {
            Phase::Closing(Err(error)) | Phase::Ended(Err(error)) => Some(error.clone()),
            Phase::Open | Phase::Closing(Ok(())) | Phase::Ended(Ok(())) => None,
        }
    }

    /// Headers received after the stream was opened.
    pub(crate) fn take_trailing_headers(&mut self, id: StreamId) -> Vec<Headers> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        let headers = std::mem::take(&mut stream.trailing_headers);
        let size: usize = headers.iter().map(Headers::size).sum();
        stream.header_bytes = stream.header_bytes.saturating_sub(size);
        self.header_bytes = self.header_bytes.saturating_sub(size);
        headers
    }

    /// Takes a stream from the backlog.
    pub(crate) fn take_incoming(&mut self) -> Option<&mut StreamState> {
        let id = self.backlog.pop_front()?;
        self.streams.get_mut(&id)
    }

    /// Closes a stream in both directions, and resets it at the peer if necessary.
    pub(crate) fn reset(&mut self, id: StreamId, status: ResetStatus) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let was_closed = stream.is_closed();
        stream.fail(&Error::Reset(status), &mut self.wakeups);
        if !was_closed {
            self.send_reset(id, status);
        }
        self.unblock();
    }

    /// Removes a stream whose last handle was dropped.
    pub(crate) fn release(&mut self, id: StreamId, status: ResetStatus) {
        self.reset(id, status);
        if let Some(stream) = self.streams.remove(&id) {
            self.header_bytes = self.header_bytes.saturating_sub(stream.header_bytes);
            self.buffered -= stream.buffered();
            if self.is_peers(id) {
                self.peer_streams -= 1;
            }
        }
        self.unblock();
        self.close_if_drained();
    }

    /// Takes the next bytes for a stream's reader.
    pub(crate) fn take_chunk(&mut self, id: StreamId) -> Option<Bytes> {
        let stream = self.streams.get_mut(&id)?;
        let before = stream.buffered();
        let chunk = stream.pop()?;
        self.buffered -= before - stream.buffered();
        self.unblock();
        Some(chunk)
    }

    /// The stream's reader was dropped.
    pub(crate) fn drop_reader(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            self.buffered -= stream.buffered();
            stream.drop_reader();
            self.unblock();
        }
    }

    /// Unblocks the driver if there is room again.
    fn unblock(&mut self) {
        let goes_on = match self.blocked {
            None => false,
            Some(ReadBlock::All) => self.buffered <= self.config.receive_total / 2,
            Some(ReadBlock::Stream(id)) => {
                let limit = self.config.receive_buffer;
                self.streams.get(&id).is_none_or(|stream| stream.has_room(limit))
            }
        };
        if goes_on {
            self.blocked = None;
            self.wake_driver();
        }
    }
}
