//! What is known of one stream.

use std::{collections::VecDeque, sync::Arc, task::Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Signals;
use crate::{
    Error,
    codec::{Headers, StreamId},
};

/// What never changes about a stream, and those who wait for its end.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: StreamId,
    pub(crate) headers: Headers,
    pub(crate) priority: u8,
    pub(crate) over: Notify,
}

/// One direction of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    Open,
    /// FIN was received, or is queued.
    Finished,
    /// It was cut off.
    Lost(Error),
}

impl Side {
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    fn lose(&mut self, reason: &Error) {
        if self.is_open() {
            *self = Self::Lost(reason.clone());
        }
    }
}

/// Whether a stream has been answered.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Ours, and the peer has not.
    Awaited,
    /// Ours, and the peer has.
    Received(Headers),
    /// The peer's, and we have not.
    Owed,
    /// The peer's, and we have.
    Sent,
}

/// What a chunk costs beyond its bytes, so that a flood of tiny frames is bounded too.
const CHUNK: usize = 64;

/// A piece of a large read keeps all of it in memory: what is smaller than this is copied out instead.
const WORTH_KEEPING: usize = 16 << 10;

/// One stream.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) core: Arc<Core>,
    pub(crate) reply: Reply,
    incoming: VecDeque<Bytes>,
    held: usize,
    pub(crate) remote: Side,
    pub(crate) local: Side,
    /// Whether somebody may still read, and write.
    pub(crate) has_reader: bool,
    pub(crate) has_writer: bool,
    pub(crate) read_waker: Option<Waker>,
    pub(crate) write_waker: Option<Waker>,
    /// Cost of what is queued and not written yet.
    pub(crate) unsent: usize,
    /// Its writer is in the line for room.
    pub(super) awaits_room: bool,
    pub(crate) later_headers: Vec<Headers>,
    pub(crate) header_bytes: usize,
}

impl Entry {
    pub(crate) fn new(core: Arc<Core>, reply: Reply) -> Self {
        Self {
            core,
            reply,
            incoming: VecDeque::new(),
            held: 0,
            remote: Side::Open,
            local: Side::Open,
            has_reader: true,
            has_writer: true,
            read_waker: None,
            write_waker: None,
            unsent: 0,
            awaits_room: false,
            later_headers: Vec::new(),
            header_bytes: 0,
        }
    }

    /// Whether nothing can pass any more, and the peer knows.
    pub(crate) fn is_over(&self) -> bool {
        !self.local.is_open() && !self.remote.is_open()
    }

    /// Whether the reader has to read before more is taken.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        self.held >= limit.max(1)
    }

    /// Whether enough has been read to go on, and not to stop again at the next frame.
    pub(crate) fn has_room(&self, limit: usize) -> bool {
        self.held <= limit / 2 || !self.takes_bytes()
    }

    /// Whether bytes of the peer find anybody.
    pub(super) fn takes_bytes(&self) -> bool {
        self.remote.is_open() && self.has_reader
    }

    /// How much waits for the reader.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn push(&mut self, payload: Bytes, signals: &mut Signals) {
        if payload.is_empty() || !self.takes_bytes() {
            return;
        }
        let payload = if payload.len() < WORTH_KEEPING { Bytes::copy_from_slice(&payload) } else { payload };
        self.held += payload.len() + CHUNK;
        self.incoming.push_back(payload);
        signals.wakers.extend(self.read_waker.take());
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let payload = self.incoming.pop_front()?;
        self.held -= payload.len() + CHUNK;
        if self.incoming.is_empty() {
            // An idle stream holds nothing.
            self.incoming = VecDeque::new();
        }
        Some(payload)
    }

    /// Throws away what nobody will read.
    pub(super) fn drop_reader(&mut self) {
        self.has_reader = false;
        self.incoming = VecDeque::new();
        self.held = 0;
    }

    pub(crate) fn finish_remote(&mut self, signals: &mut Signals) {
        if self.remote.is_open() {
            self.remote = Side::Finished;
            signals.wakers.extend(self.read_waker.take());
            self.tell_if_over(signals);
        }
    }

    pub(crate) fn finish_local(&mut self, signals: &mut Signals) {
        if self.local.is_open() {
            self.local = Side::Finished;
            self.tell_if_over(signals);
        }
    }

    /// Cuts the stream off in the directions that are not finished. What has arrived can still be read.
    pub(crate) fn lose(&mut self, reason: &Error, signals: &mut Signals) {
        self.remote.lose(reason);
        self.local.lose(reason);
        signals.wakers.extend(self.read_waker.take());
        signals.wakers.extend(self.write_waker.take());
        self.tell_if_over(signals);
    }

    /// Nothing can be sent any more.
    pub(crate) fn lose_local(&mut self, reason: &Error, signals: &mut Signals) {
        self.local.lose(reason);
        signals.wakers.extend(self.write_waker.take());
        if matches!(self.reply, Reply::Awaited) {
            signals.wakers.extend(self.read_waker.take());
        }
        self.tell_if_over(signals);
    }

    fn tell_if_over(&self, signals: &mut Signals) {
        if self.is_over() {
            signals.over.push(Arc::clone(&self.core));
        }
    }
}
