//! The state of one stream.

use std::{collections::VecDeque, sync::Arc, task::Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Wakeups;
use crate::{
    Error,
    codec::{Headers, StreamId},
};

/// The immutable part of a stream, and the notification of its end.
#[derive(Debug)]
pub(crate) struct StreamCore {
    pub(crate) id: StreamId,
    pub(crate) headers: Headers,
    pub(crate) priority: u8,
    pub(crate) closed: Notify,
}

/// One direction of a stream.
#[derive(Clone, Debug)]
pub(crate) enum HalfState {
    Open,
    /// FIN was received or queued.
    Finished,
    /// It was cut off.
    Failed(Error),
}

impl HalfState {
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    fn fail(&mut self, reason: &Error) {
        if self.is_open() {
            *self = Self::Failed(reason.clone());
        }
    }
}

/// Whether a stream has been answered.
#[derive(Debug)]
pub(crate) enum ReplyState {
    /// Our stream; the peer has not answered.
    Awaited,
    /// Our stream; the peer has answered.
    Received(Headers),
    /// The peer's stream; we have not answered.
    Owed,
    /// The peer's stream; we have answered.
    Sent,
}

/// The cost of a chunk in addition to its bytes, so that many tiny frames are bounded too.
const CHUNK_OVERHEAD: usize = 64;

/// Smaller payloads are copied: a slice of a large read would keep all of it in memory.
const MIN_ZERO_COPY: usize = 16 << 10;

/// The state of a stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub(crate) core: Arc<StreamCore>,
    pub(crate) reply: ReplyState,
    incoming: VecDeque<Bytes>,
    buffered: usize,
    pub(crate) remote: HalfState,
    pub(crate) local: HalfState,
    /// Whether the reader, and the writer, still exist.
    pub(crate) has_reader: bool,
    pub(crate) has_writer: bool,
    pub(crate) read_waker: Option<Waker>,
    pub(crate) write_waker: Option<Waker>,
    /// Cost of queued frames that are not written yet.
    pub(crate) unsent: usize,
    /// Its writer waits for room.
    pub(super) waits_for_room: bool,
    pub(crate) trailing_headers: Vec<Headers>,
    pub(crate) header_bytes: usize,
}

impl StreamState {
    pub(crate) fn new(core: Arc<StreamCore>, reply: ReplyState) -> Self {
        Self {
            core,
            reply,
            incoming: VecDeque::new(),
            buffered: 0,
            remote: HalfState::Open,
            local: HalfState::Open,
            has_reader: true,
            has_writer: true,
            read_waker: None,
            write_waker: None,
            unsent: 0,
            waits_for_room: false,
            trailing_headers: Vec::new(),
            header_bytes: 0,
        }
    }

    /// Whether both directions are closed.
    pub(crate) fn is_closed(&self) -> bool {
        !self.local.is_open() && !self.remote.is_open()
    }

    /// Whether the buffer is full.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.buffered >= limit.max(1)
    }

    /// Whether there is enough room to continue, without stopping again at the next frame.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.buffered <= limit / 2 || !self.accepts_data()
    }

    /// Whether data of the peer is accepted.
    pub(super) fn accepts_data(&self) -> bool {
        self.remote.is_open() && self.has_reader
    }

    /// Bytes buffered for the reader.
    pub(super) fn buffered(&self) -> usize {
        self.buffered
    }

    pub(super) fn push(&mut self, payload: Bytes, wakeups: &mut Wakeups) {
        if payload.is_empty() || !self.accepts_data() {
            return;
        }
        let payload = if payload.len() < MIN_ZERO_COPY { Bytes::copy_from_slice(&payload) } else { payload };
        self.buffered += payload.len() + CHUNK_OVERHEAD;
        self.incoming.push_back(payload);
        wakeups.wakers.extend(self.read_waker.take());
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let payload = self.incoming.pop_front()?;
        self.buffered -= payload.len() + CHUNK_OVERHEAD;
        if self.incoming.is_empty() {
            // An idle stream holds no memory.
            self.incoming = VecDeque::new();
        }
        Some(payload)
    }

    /// Drops buffered data.
    pub(super) fn drop_reader(&mut self) {
        self.has_reader = false;
        self.incoming = VecDeque::new();
        self.buffered = 0;
    }

    pub(crate) fn finish_remote(&mut self, wakeups: &mut Wakeups) {
        if self.remote.is_open() {
            self.remote = HalfState::Finished;
            wakeups.wakers.extend(self.read_waker.take());
            self.notify_if_closed(wakeups);
        }
    }

    pub(crate) fn finish_local(&mut self, wakeups: &mut Wakeups) {
        if self.local.is_open() {
            self.local = HalfState::Finished;
            self.notify_if_closed(wakeups);
        }
    }

    /// Fails the open directions. Received data can still be read.
    pub(crate) fn fail(&mut self, reason: &Error, wakeups: &mut Wakeups) {
        self.remote.fail(reason);
        self.local.fail(reason);
        wakeups.wakers.extend(self.read_waker.take());
        wakeups.wakers.extend(self.write_waker.take());
        self.notify_if_closed(wakeups);
    }

    /// Fails the sending direction.
    pub(crate) fn fail_local(&mut self, reason: &Error, wakeups: &mut Wakeups) {
        self.local.fail(reason);
        wakeups.wakers.extend(self.write_waker.take());
        if matches!(self.reply, ReplyState::Awaited) {
            wakeups.wakers.extend(self.read_waker.take());
        }
        self.notify_if_closed(wakeups);
    }

    fn notify_if_closed(&self, wakeups: &mut Wakeups) {
        if self.is_closed() {
            wakeups.closed.push(Arc::clone(&self.core));
        }
    }
}
