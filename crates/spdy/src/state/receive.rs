//! What the frames of the peer do.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{Core, Entry, Reply, Role, Side, Stall, State};
use crate::{
    Error,
    codec::{self, Frame, Headers, ResetStatus, StreamId},
};

/// Whether a frame was dealt with.
#[derive(Debug)]
pub(crate) enum Received {
    Done,
    /// It has to wait until the stream's reader has made room, or answers have been written.
    Later(Frame),
}

/// How many HEADERS frames wait for a stream's reader. Nobody in Kubernetes sends any.
const MAX_LATER_HEADERS: usize = 16;

/// How many streams of the peer a server has at a time, unless told otherwise.
const MAX_STREAMS: usize = 1024;

impl State {
    /// Deals with a frame of the peer.
    pub(crate) fn receive(&mut self, frame: Frame) -> Received {
        if !self.is_open() {
            // Good-bye has been said.
            return Received::Done;
        }
        if self.outbox.is_choked() {
            return Received::Later(frame);
        }
        match frame {
            Frame::Data { id, payload, fin } => {
                let Some(entry) = self.streams.get_mut(&id) else {
                    self.stray(id);
                    return Received::Done;
                };
                let stall = if payload.is_empty() || !entry.takes_bytes() {
                    None
                } else if entry.is_full(self.config.receive_buffer) {
                    Some(Stall::Stream(id))
                } else if self.held >= self.config.receive_total.max(1) {
                    Some(Stall::All)
                } else {
                    None
                };
                if stall.is_some() {
                    self.stalled = stall;
                    return Received::Later(Frame::Data { id, payload, fin });
                }
                let before = entry.held();
                if matches!(entry.remote, Side::Finished) {
                    self.refuse(id, ResetStatus::StreamAlreadyClosed);
                    return Received::Done;
                }
                entry.push(payload, &mut self.signals);
                self.held += entry.held() - before;
                if fin {
                    entry.finish_remote(&mut self.signals);
                }
            }
            Frame::SynStream { id, priority, headers, fin, unidirectional, .. } => {
                self.incoming(id, priority, headers, fin, unidirectional);
            }
            Frame::SynReply { id, headers, fin } => self.replied(id, headers, fin),
            Frame::Headers { id, headers, fin } => self.more_headers(id, headers, fin),
            Frame::RstStream { id, status } => self.was_reset(id, status),
            Frame::Ping(id) if self.is_our_ping(id) => self.signals.pongs.extend(self.pings.remove(&id)),
            Frame::Ping(id) => self.short(&Frame::Ping(id)),
            Frame::GoAway { last_good, .. } => {
                self.gone_away = true;
                self.signals.no_more = true;
                let missed = self.streams.iter().filter(|(id, entry)| {
                    !self.is_peers(**id) && **id > last_good && matches!(entry.reply, Reply::Awaited)
                });
                for id in missed.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.was_reset(id, ResetStatus::RefusedStream);
                }
                self.leave_when_done();
            }
            // There is no flow control in Kubernetes' SPDY, and nothing to set.
            Frame::Settings { .. } | Frame::WindowUpdate { .. } => {}
        }
        Received::Done
    }

    /// The decoder could not make a frame of what the peer sent.
    pub(crate) fn receive_error(&mut self, error: codec::Error) {
        match error {
            codec::Error::Stream { id, .. } => {
                if self.is_peers(id) && id > self.last_peer_id {
                    self.last_peer_id = id;
                }
                self.refuse(id, ResetStatus::ProtocolError);
            }
            fatal => self.fail(Error::Protocol(fatal)),
        }
    }

    fn incoming(&mut self, id: StreamId, priority: u8, headers: Headers, fin: bool, unidirectional: bool) {
        if !self.is_peers(id) || id <= self.last_peer_id {
            // A number of the wrong kind, or used before. What lives under it dies of it: the peer takes it for reset.
            self.refuse(id, ResetStatus::ProtocolError);
            return;
        }
        self.last_peer_id = id;
        let most = self.config.max_streams.unwrap_or(if self.role == Role::Server { MAX_STREAMS } else { 0 });
        let size = headers.size();
        if self.gone_away
            || self.peer_streams >= most
            || self.header_bytes.saturating_add(size) > self.config.max_header_bytes
        {
            self.rst(id, ResetStatus::RefusedStream);
            return;
        }
        let core = Arc::new(Core { id, headers, priority, over: Notify::new() });
        let mut entry = Entry::new(core, Reply::Owed);
        entry.header_bytes = size;
        if fin {
            entry.remote = Side::Finished;
        }
        if unidirectional {
            entry.local = Side::Finished;
        } else if let Some(error) = self.outbound_failure() {
            entry.local = Side::Lost(error);
        }
        self.header_bytes += size;
        self.peer_streams += 1;
        self.streams.insert(id, entry);
        self.backlog.push_back(id);
        self.signals.arrived = true;
    }

    fn replied(&mut self, id: StreamId, headers: Headers, fin: bool) {
        let Some(entry) = self.streams.get_mut(&id) else { return self.stray(id) };
        if !matches!(entry.reply, Reply::Awaited) {
            return self.refuse(id, ResetStatus::StreamInUse);
        }
        entry.reply = Reply::Received(headers);
        self.signals.wakers.extend(entry.read_waker.take());
        if fin {
            entry.finish_remote(&mut self.signals);
        }
    }

    fn more_headers(&mut self, id: StreamId, headers: Headers, fin: bool) {
        let most = self.config.max_header_bytes;
        let Some(entry) = self.streams.get_mut(&id) else { return self.stray(id) };
        if matches!(entry.remote, Side::Finished) {
            return self.refuse(id, ResetStatus::StreamAlreadyClosed);
        }
        if entry.has_reader && entry.remote.is_open() {
            let size = headers.size();
            if entry.later_headers.len() >= MAX_LATER_HEADERS || self.header_bytes.saturating_add(size) > most
            {
                return self.refuse(id, ResetStatus::FrameTooLarge);
            }
            self.header_bytes += size;
            entry.header_bytes += size;
            entry.later_headers.push(headers);
        }
        if fin {
            entry.finish_remote(&mut self.signals);
        }
    }

    fn was_reset(&mut self, id: StreamId, status: ResetStatus) {
        if let Some(entry) = self.streams.get_mut(&id) {
            entry.lose(&Error::Reset(status), &mut self.signals);
            self.drop_unclaimed(id);
        }
    }

    /// The peer broke a rule about a stream: it costs the stream, if there is one.
    fn refuse(&mut self, id: StreamId, status: ResetStatus) {
        if self.streams.contains_key(&id) {
            self.reset(id, status);
            self.drop_unclaimed(id);
        } else {
            self.rst(id, status);
        }
    }

    /// A stream that is over before anybody took it is not offered any more.
    fn drop_unclaimed(&mut self, id: StreamId) {
        if let Some(place) = self.backlog.iter().position(|waiting| *waiting == id) {
            self.backlog.remove(place);
            self.forget(id, ResetStatus::Cancel);
        }
    }

    /// A frame for a stream that is not there: one that has been, or one that never was.
    fn stray(&mut self, id: StreamId) {
        let has_been = if self.is_peers(id) { id <= self.last_peer_id } else { id < self.next_id };
        if !has_been {
            self.rst(id, ResetStatus::InvalidStream);
        }
    }

    fn is_our_ping(&self, id: u32) -> bool {
        id % 2 == self.next_ping % 2
    }
}
