//! What waits to be written, in the order of the wire.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Signals, State};
use crate::codec::{StreamId, data_header};

/// A frame as it goes out: every frame of SPDY begins with eight bytes, so DATA needs no copy of its payload.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) head: [u8; 8],
    pub(crate) body: Bytes,
    /// Whose DATA it is; unset for a control frame.
    stream: Option<StreamId>,
}

impl Outgoing {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// What it takes in memory, about: tiny frames count for more than their bytes.
    fn cost(&self) -> usize {
        self.body.len() + 64
    }
}

/// The queue, with its bounds.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: VecDeque<Outgoing>,
    /// Cost of all that is queued, or taken by the driver and not written yet.
    unsent: usize,
    controls: usize,
    limit: usize,
    /// Streams whose writers wait for room, in the order in which they came.
    waiting: VecDeque<StreamId>,
}

/// So many control frames make the driver stop reading: a peer that asks and does not listen gets no more answers.
const MAX_CONTROLS: usize = 1000;

impl Outbox {
    pub(super) fn new(limit: usize) -> Self {
        Self { queue: VecDeque::new(), unsent: 0, controls: 0, limit: limit.max(1), waiting: VecDeque::new() }
    }

    pub(super) fn push_control(&mut self, mut frame: Bytes) {
        let mut head = [0; 8];
        head.copy_from_slice(&frame.split_to(8));
        self.controls += 1;
        self.push(Outgoing { head, body: frame, stream: None });
    }

    fn push(&mut self, frame: Outgoing) -> usize {
        let cost = frame.cost();
        self.unsent += cost;
        self.queue.push_back(frame);
        cost
    }

    /// Whether answers have piled up.
    pub(crate) fn is_choked(&self) -> bool {
        self.controls >= MAX_CONTROLS
    }

    pub(super) fn clear(&mut self) {
        for frame in std::mem::take(&mut self.queue) {
            self.settle(&frame);
        }
    }

    fn settle(&mut self, frame: &Outgoing) {
        self.unsent -= frame.cost();
        self.controls -= usize::from(frame.stream.is_none());
    }

    /// Hands frames over for writing, about as much as is asked for.
    pub(crate) fn take(&mut self, frames: usize, bytes: usize, into: &mut VecDeque<Outgoing>) {
        let mut taken = 0;
        for _ in 0..frames {
            if taken >= bytes {
                break;
            }
            let Some(frame) = self.queue.pop_front() else {
                self.queue.shrink_to(16);
                break;
            };
            taken += frame.len();
            into.push_back(frame);
        }
    }
}

impl State {
    /// Whether a stream may queue more now.
    pub(crate) fn has_room(&self, unsent: usize) -> bool {
        self.outbox.unsent < self.outbox.limit && unsent <= self.outbox.limit / 4
    }

    /// Notes that a writer waits for room.
    pub(crate) fn await_room(&mut self, id: StreamId) {
        if let Some(entry) = self.streams.get_mut(&id)
            && !entry.awaits_room
        {
            entry.awaits_room = true;
            self.outbox.waiting.push_back(id);
        }
    }

    /// Queues bytes of a stream.
    pub(crate) fn push_data(&mut self, id: StreamId, payload: Bytes, fin: bool) {
        let head = data_header(id, fin, payload.len());
        let cost = self.outbox.push(Outgoing { head, body: payload, stream: Some(id) });
        if let Some(entry) = self.streams.get_mut(&id) {
            entry.unsent += cost;
        }
        self.wake_driver();
    }

    /// The driver has written these frames, or will never: their room is free again.
    pub(crate) fn written(&mut self, frames: impl Iterator<Item = Outgoing>) {
        for frame in frames {
            self.outbox.settle(&frame);
            if let Some(entry) = frame.stream.and_then(|id| self.streams.get_mut(&id)) {
                entry.unsent -= frame.cost();
                if entry.unsent == 0 {
                    // Somebody may wait for a flush.
                    self.signals.wakers.extend(entry.write_waker.take());
                }
            }
        }
        self.admit_writers();
    }

    /// Wakes writers in the order in which they came. Not for every bit of room: half of it has to be free.
    fn admit_writers(&mut self) {
        if self.outbox.unsent > self.outbox.limit / 2 {
            return;
        }
        let Self { outbox, streams, signals, .. } = self;
        let (limit, Signals { wakers, .. }) = (outbox.limit / 8, signals);
        outbox.waiting.retain(|id| {
            let Some(entry) = streams.get_mut(id) else { return false };
            if entry.unsent > limit {
                return true;
            }
            entry.awaits_room = false;
            wakers.extend(entry.write_waker.take());
            false
        });
    }
}
