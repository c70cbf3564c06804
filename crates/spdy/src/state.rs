//! What a connection knows: a state machine without I/O, shared by the driver, the connection and its streams.

mod entry;
mod outbox;
mod receive;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

pub(crate) use self::{
    entry::{Core, Entry, Reply, Side},
    outbox::{Outbox, Outgoing},
    receive::Received,
};
use crate::{
    Config, Error,
    codec::{Encoder, Frame, GoAwayStatus, Headers, ResetStatus, StreamId},
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

/// The state behind its lock, and those who wait for the connection as a whole.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) accept: Notify,
    pub(crate) ended: Notify,
}

impl Shared {
    pub(crate) fn new(role: Role, config: Config) -> Arc<Self> {
        let state = Mutex::new(State::new(role, config));
        Arc::new(Self { state, accept: Notify::new(), ended: Notify::new() })
    }

    /// Does something with the state; whoever is to hear of it is woken after the lock is free again, because a waker may drop
    /// what it wakes, and that may be a stream, which would want the lock.
    pub(crate) fn with<Answer>(&self, act: impl FnOnce(&mut State) -> Answer) -> Answer {
        let (answer, signals) = {
            let mut state = self.state.lock();
            let answer = act(&mut state);
            (answer, std::mem::take(&mut state.signals))
        };
        for waker in signals.wakers {
            waker.wake();
        }
        for core in signals.over {
            core.over.notify_waiters();
        }
        for pong in signals.pongs {
            // Whoever waited may have left.
            let _ = pong.send(());
        }
        if signals.arrived {
            self.accept.notify_one();
        }
        if signals.no_more {
            self.accept.notify_waiters();
        }
        if signals.ended {
            self.ended.notify_waiters();
        }
        answer
    }
}

/// Whom to wake when the lock is free.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) wakers: Vec<Waker>,
    over: Vec<Arc<Core>>,
    pongs: Vec<oneshot::Sender<()>>,
    arrived: bool,
    no_more: bool,
    ended: bool,
}

impl Signals {
    /// There is a stream to be accepted.
    pub(crate) fn arrived(&mut self) {
        self.arrived = true;
    }

    /// Puts a waker in its place. The one that was there is woken once more, rather than dropped under the lock.
    pub(crate) fn register(&mut self, place: &mut Option<Waker>, waker: &Waker) {
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.wakers.extend(place.replace(waker.clone()));
        }
    }
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

    /// The carrier takes nothing more. What the peer has sent can still be read.
    pub(crate) fn lose_outbound(&mut self, error: &Error) {
        self.outbound_failure = Some(error.clone());
        self.outbox.clear();
        for entry in self.streams.values_mut() {
            entry.lose_local(error, &mut self.signals);
        }
    }

    /// Why the carrier takes nothing more.
    pub(crate) fn outbound_failure(&self) -> Option<Error> {
        self.outbound_failure.clone()
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

    /// Nobody holds the connection any more.
    pub(crate) fn abandon(&mut self) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.closed_here = true;
            self.lose_all(&Error::Closed);
            self.end(Ok(()));
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

    /// After the peer's GOAWAY, the last stream takes the connection with it.
    fn leave_when_done(&mut self) {
        if self.gone_away && self.streams.is_empty() && self.is_open() {
            self.begin_close(Ok(()));
        }
    }

    /// Says good-bye: resets what is open, and sends GOAWAY after everything that is queued.
    pub(crate) fn begin_close(&mut self, result: Result<(), Error>) {
        if !self.is_open() {
            return;
        }
        self.closed_here = true;
        let reason = result.clone().err().unwrap_or(Error::Closed);
        let open: Vec<_> =
            self.streams.iter().filter(|(_, entry)| !entry.is_over()).map(|(id, _)| *id).collect();
        for id in open {
            self.rst(id, ResetStatus::Cancel);
        }
        self.lose_all(&reason);
        let status = match &result {
            Err(Error::Protocol(_)) => GoAwayStatus::ProtocolError,
            _ => GoAwayStatus::Ok,
        };
        self.short(&Frame::GoAway { last_good: self.last_peer_id, status });
        self.phase = Phase::Closing(result);
        self.wake_driver();
    }

    /// The peer broke the protocol: nothing more is worth sending but GOAWAY.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.is_open() {
            self.outbox.clear();
            for entry in self.streams.values_mut() {
                entry.lose(&error, &mut self.signals);
            }
            self.begin_close(Err(error));
        } else {
            self.end(Err(error));
        }
    }

    /// The end: nothing passes any more.
    pub(crate) fn end(&mut self, result: Result<(), Error>) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        let reason = result.clone().err().unwrap_or(Error::PeerClosed);
        self.phase = Phase::Ended(result);
        self.lose_all(&reason);
        self.outbox.clear();
        self.pings.clear();
        self.signals.ended = true;
        self.wake_driver();
    }

    /// Every stream is cut off; those that nobody has taken yet are dropped.
    fn lose_all(&mut self, reason: &Error) {
        for id in std::mem::take(&mut self.backlog) {
            self.streams.remove(&id);
        }
        for entry in self.streams.values_mut() {
            entry.lose(reason, &mut self.signals);
        }
        self.stalled = None;
        self.signals.no_more = true;
    }
}
