//! Frames queued for sending, in order.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{ConnectionState, Wakeups};
use crate::codec::{StreamId, data_header};

/// A frame to send. Every SPDY frame starts with eight bytes, so the payload of DATA is not copied.
#[derive(Clone, Debug)]
pub(crate) struct QueuedFrame {
    pub(crate) head: [u8; 8],
    pub(crate) body: Bytes,
    /// The stream of a DATA frame; unset for a control frame.
    stream: Option<StreamId>,
}

impl QueuedFrame {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Approximate memory use: tiny frames count for more than their bytes.
    fn cost(&self) -> usize {
        self.body.len() + 64
    }
}

/// The bounded queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    queue: VecDeque<QueuedFrame>,
    /// Cost of all frames that are not written yet, including those taken by the driver.
    unsent: usize,
    control_frames: usize,
    limit: usize,
    /// Streams whose writers wait for room, in order.
    waiting: VecDeque<StreamId>,
}

/// The driver stops reading at this number of control frames: a peer that does not read gets no more replies.
const MAX_CONTROL_FRAMES: usize = 1000;

impl SendQueue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            unsent: 0,
            control_frames: 0,
            limit: limit.max(1),
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn push_control(&mut self, mut frame: Bytes) {
        let mut head = [0; 8];
        head.copy_from_slice(&frame.split_to(8));
        self.control_frames += 1;
        self.push(QueuedFrame { head, body: frame, stream: None });
    }

    fn push(&mut self, frame: QueuedFrame) -> usize {
        let cost = frame.cost();
        self.unsent += cost;
        self.queue.push_back(frame);
        cost
    }

    /// Whether too many replies are queued.
    pub(crate) fn is_reply_limit_reached(&self) -> bool {
        self.control_frames >= MAX_CONTROL_FRAMES
    }

    pub(super) fn clear(&mut self) {
        for frame in std::mem::take(&mut self.queue) {
            self.release_frame(&frame);
        }
    }

    fn release_frame(&mut self, frame: &QueuedFrame) {
        self.unsent -= frame.cost();
        self.control_frames -= usize::from(frame.stream.is_none());
    }

    /// Takes frames for writing, up to about these limits.
    pub(crate) fn take(&mut self, frames: usize, bytes: usize, into: &mut VecDeque<QueuedFrame>) {
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

impl ConnectionState {
    /// Whether a stream may queue more now.
    pub(crate) fn has_room(&self, unsent: usize) -> bool {
        self.send_queue.unsent < self.send_queue.limit && unsent <= self.send_queue.limit / 4
    }

    /// Registers a waiting writer.
    pub(crate) fn wait_for_room(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.waits_for_room
        {
            stream.waits_for_room = true;
            self.send_queue.waiting.push_back(id);
        }
    }

    /// Queues data of a stream.
    pub(crate) fn push_data(&mut self, id: StreamId, payload: Bytes, fin: bool) {
        let head = data_header(id, fin, payload.len());
        let cost = self.send_queue.push(QueuedFrame { head, body: payload, stream: Some(id) });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.unsent += cost;
        }
        self.wake_driver();
    }

    /// Releases frames that the driver has written or dropped.
    pub(crate) fn written(&mut self, frames: impl Iterator<Item = QueuedFrame>) {
        for frame in frames {
            self.send_queue.release_frame(&frame);
            if let Some(stream) = frame.stream.and_then(|id| self.streams.get_mut(&id)) {
                stream.unsent -= frame.cost();
                if stream.unsent == 0 {
                    // A flush may be waiting.
                    self.wakeups.wakers.extend(stream.write_waker.take());
                }
            }
        }
        self.wake_writers();
    }

    /// Wakes writers in order, once half of the room is free.
    fn wake_writers(&mut self) {
        if self.send_queue.unsent > self.send_queue.limit / 2 {
            return;
        }
        let Self { send_queue, streams, wakeups, .. } = self;
        let (limit, Wakeups { wakers, .. }) = (send_queue.limit / 8, wakeups);
        send_queue.waiting.retain(|id| {
            let Some(stream) = streams.get_mut(id) else { return false };
            if stream.unsent > limit {
                return true;
            }
            stream.waits_for_room = false;
            wakers.extend(stream.write_waker.take());
            false
        });
    }
}
