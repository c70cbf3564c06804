//! What a connection knows: a state machine without I/O, shared by the driver, the connection and its streams.

mod ending;
mod entry;
mod outbox;
mod receive;
mod shared;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

pub(crate) use self::{
    entry::{Core, Entry, Reply, Side},
    outbox::{Outbox, Outgoing},
    receive::Received,
    shared::{Shared, Signals},
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

/// How far a connection has come.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Streams come and go.
    Open,
    /// What is queued is still written, GOAWAY last; then the connection ends with this.
    Closing(Result<(), Error>),
    /// Nothing passes any more.
    Ended(Result<(), Error>),
}

/// Why nothing is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stall {
    /// A stream has enough to read.
    Stream(StreamId),
    /// All of them together have.
    All,
}

/// Everything that one connection knows.
#[derive(Debug)]
pub(crate) struct State {
    role: Role,
    pub(crate) config: Config,
    encoder: Encoder,
    pub(crate) phase: Phase,
    pub(crate) streams: HashMap<StreamId, Entry>,
    /// Of the peer's streams, those that nobody has taken yet.
    pub(crate) backlog: VecDeque<StreamId>,
    pub(crate) outbox: Outbox,
    pub(crate) driver: Option<Waker>,
    /// What keeps the driver from reading.
    stalled: Option<Stall>,
    /// What all streams hold for their readers.
    held: usize,
    /// The peer has sent GOAWAY.
    pub(crate) gone_away: bool,
    outbound_failure: Option<Error>,
    /// It was this side that ended the connection.
    closed_here: bool,
    next_id: StreamId,
    last_peer_id: StreamId,
    peer_streams: usize,
    header_bytes: usize,
    next_ping: u32,
    pings: HashMap<u32, oneshot::Sender<()>>,
    pub(crate) signals: Signals,
}

impl State {
    fn new(role: Role, config: Config) -> Self {
        let first = if role == Role::Client { 1 } else { 2 };
        let outbox = Outbox::new(config.send_buffer);
        Self {
            role,
            config,
            encoder: Encoder::new(),
            phase: Phase::Open,
            streams: HashMap::new(),
            backlog: VecDeque::new(),
            outbox,
            driver: None,
            stalled: None,
            held: 0,
            gone_away: false,
            outbound_failure: None,
            closed_here: false,
            next_id: first,
            last_peer_id: 0,
            peer_streams: 0,
            header_bytes: 0,
            next_ping: first,
            pings: HashMap::new(),
            signals: Signals::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// How the connection ended, once it has.
    pub(crate) fn result(&self) -> Option<Result<(), Error>> {
        if let Phase::Ended(result) = &self.phase { Some(result.clone()) } else { None }
    }

    /// What a stream or a caller is told that comes too late.
    pub(crate) fn reason(&self) -> Error {
        match &self.phase {
            Phase::Open => Error::GoneAway,
            Phase::Closing(Ok(())) => Error::Closed,
            Phase::Ended(Ok(())) if self.closed_here => Error::Closed,
            Phase::Ended(Ok(())) => Error::PeerClosed,
            Phase::Closing(Err(error)) | Phase::Ended(Err(error)) => error.clone(),
        }
    }

    /// Whether the peer started this stream.
    fn is_peers(&self, id: StreamId) -> bool {
        (id % 2 == 1) == (self.role == Role::Server)
    }

    pub(crate) fn wake_driver(&mut self) {
        self.signals.wakers.extend(self.driver.take());
    }

    /// Queues a frame that is no DATA. While the connection closes nothing is added.
    pub(crate) fn control(&mut self, frame: &Frame) -> Result<(), Error> {
        if !self.is_open() {
            return Err(self.reason());
        }
        if let Some(error) = self.outbound_failure() {
            return Err(error);
        }
        let mut bytes = BytesMut::new();
        self.encoder.encode(frame, &mut bytes)?;
        self.outbox.push_control(bytes.freeze());
        self.wake_driver();
        Ok(())
    }

    /// Queues a frame of fixed length, which can fail only where it is not wanted any more.
    fn short(&mut self, frame: &Frame) {
        let _ = self.control(frame);
    }

    pub(crate) fn rst(&mut self, id: StreamId, status: ResetStatus) {
        self.short(&Frame::RstStream { id, status });
    }

    /// Starts a stream of our own.
    pub(crate) fn open(
        &mut self,
        headers: &Headers,
        core: impl FnOnce(StreamId) -> Arc<Core>,
    ) -> Result<Arc<Core>, Error> {
        if self.gone_away || !self.is_open() {
            return Err(self.reason());
        }
        let id = self.next_id;
        if id > 0x7fff_ffff {
            return Err(Error::Exhausted);
        }
        let headers = headers.clone();
        let (fin, unidirectional) = (false, false);
        self.control(&Frame::SynStream { id, associated: 0, priority: 0, headers, fin, unidirectional })?;
        self.next_id += 2;
        let core = core(id);
        self.streams.insert(id, Entry::new(Arc::clone(&core), Reply::Awaited));
        Ok(core)
    }

    /// Sends a PING; the receiver hears when it comes back.
    pub(crate) fn ping(&mut self) -> Result<oneshot::Receiver<()>, Error> {
        let id = self.next_ping;
        self.control(&Frame::Ping(id))?;
        self.next_ping = if id > 0xffff_fffd { id % 2 + 2 } else { id + 2 };
        let (pong, came_back) = oneshot::channel();
        // Those who gave up waiting leave nothing behind, even if the peer never answers.
        self.pings.retain(|_, pong| !pong.is_closed());
        self.pings.insert(id, pong);
        Ok(came_back)
    }

    /// Why the connection broke, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.phase {
            Phase::Closing(Err(error)) | Phase::Ended(Err(error)) => Some(error.clone()),
            Phase::Open | Phase::Closing(Ok(())) | Phase::Ended(Ok(())) => None,
        }
    }

    /// Headers that came after the stream was opened.
    pub(crate) fn take_later_headers(&mut self, id: StreamId) -> Vec<Headers> {
        let Some(entry) = self.streams.get_mut(&id) else { return Vec::new() };
        let headers = std::mem::take(&mut entry.later_headers);
        let size: usize = headers.iter().map(Headers::size).sum();
        entry.header_bytes = entry.header_bytes.saturating_sub(size);
        self.header_bytes = self.header_bytes.saturating_sub(size);
        headers
    }

    /// Takes a stream of the peer off the backlog.
    pub(crate) fn take_incoming(&mut self) -> Option<&mut Entry> {
        let id = self.backlog.pop_front()?;
        self.streams.get_mut(&id)
    }

    /// Ends a stream in both directions on this side, and tells the peer if it does not know yet.
    pub(crate) fn reset(&mut self, id: StreamId, status: ResetStatus) {
        let Some(entry) = self.streams.get_mut(&id) else { return };
        let known = entry.is_over();
        entry.lose(&Error::Reset(status), &mut self.signals);
        if !known {
            self.rst(id, status);
        }
        self.unstall();
    }

    /// Forgets a stream: nobody holds it any more.
    pub(crate) fn forget(&mut self, id: StreamId, status: ResetStatus) {
        self.reset(id, status);
        if let Some(entry) = self.streams.remove(&id) {
            self.header_bytes = self.header_bytes.saturating_sub(entry.header_bytes);
            self.held -= entry.held();
            if self.is_peers(id) {
                self.peer_streams -= 1;
            }
        }
        self.unstall();
        self.leave_when_done();
    }

    /// Takes the next bytes for the reader of a stream.
    pub(crate) fn take_chunk(&mut self, id: StreamId) -> Option<Bytes> {
        let entry = self.streams.get_mut(&id)?;
        let before = entry.held();
        let chunk = entry.pop()?;
        self.held -= before - entry.held();
        self.unstall();
        Some(chunk)
    }

    /// Nobody reads this stream any more.
    pub(crate) fn drop_reader(&mut self, id: StreamId) {
        if let Some(entry) = self.streams.get_mut(&id) {
            self.held -= entry.held();
            entry.drop_reader();
            self.unstall();
        }
    }

    /// Lets the driver go on if what it waited for has come.
    fn unstall(&mut self) {
        let goes_on = match self.stalled {
            None => false,
            Some(Stall::All) => self.held <= self.config.receive_total / 2,
            Some(Stall::Stream(id)) => {
                let limit = self.config.receive_buffer;
                self.streams.get(&id).is_none_or(|entry| entry.has_room(limit))
            }
        };
        if goes_on {
            self.stalled = None;
            self.wake_driver();
        }
    }
}
