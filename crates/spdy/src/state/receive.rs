//! Processes the peer's frames.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{ConnectionState, HalfState, ReadBlock, ReplyState, Role, StreamCore, StreamState};
use crate::{
    Error,
    codec::{self, Frame, Headers, ResetStatus, StreamId},
};

/// Whether a frame was processed.
#[derive(Debug)]
pub(crate) enum FrameOutcome {
    Done,
    /// It must wait until the stream's reader has made room, or until replies have been written.
    Blocked(Frame),
}

/// Buffered HEADERS frames of a stream. Nobody in Kubernetes sends any.
const MAX_TRAILING_HEADERS: usize = 16;

/// Default number of concurrent streams of the peer on a server.
const MAX_STREAMS: usize = 1024;

impl ConnectionState {
    /// Processes a frame.
    pub(crate) fn receive(&mut self, frame: Frame) -> FrameOutcome {
        if !self.is_open() {
            // The connection is closing.
            return FrameOutcome::Done;
        }
        if self.send_queue.is_reply_limit_reached() {
            return FrameOutcome::Blocked(frame);
        }
        match frame {
            Frame::Data { id, payload, fin } => {
                let Some(stream) = self.streams.get_mut(&id) else {
                    self.unknown_stream(id);
                    return FrameOutcome::Done;
                };
                let stall = if payload.is_empty() || !stream.accepts_data() {
                    None
                } else if stream.is_full(self.config.receive_buffer) {
                    Some(ReadBlock::Stream(id))
                } else if self.buffered >= self.config.receive_total.max(1) {
                    Some(ReadBlock::All)
                } else {
                    None
                };
                if stall.is_some() {
                    self.blocked = stall;
                    return FrameOutcome::Blocked(Frame::Data { id, payload, fin });
                }
                let before = stream.buffered();
                if matches!(stream.remote, HalfState::Finished) {
                    self.fail_stream(id, ResetStatus::StreamAlreadyClosed);
                    return FrameOutcome::Done;
                }
                stream.push(payload, &mut self.wakeups);
                self.buffered += stream.buffered() - before;
                if fin {
                    stream.finish_remote(&mut self.wakeups);
                }
            }
            Frame::SynStream { id, priority, headers, fin, unidirectional, .. } => {
                self.receive_syn_stream(id, priority, headers, fin, unidirectional);
            }
            Frame::SynReply { id, headers, fin } => self.receive_reply(id, headers, fin),
            Frame::Headers { id, headers, fin } => self.receive_headers(id, headers, fin),
            Frame::RstStream { id, status } => self.receive_reset(id, status),
            Frame::Ping(id) if self.is_our_ping(id) => self.wakeups.pongs.extend(self.pings.remove(&id)),
            Frame::Ping(id) => self.send_short(&Frame::Ping(id)),
            Frame::GoAway { last_good, .. } => {
                self.received_go_away = true;
                self.wakeups.no_more = true;
                let missed = self.streams.iter().filter(|(id, stream)| {
                    !self.is_peers(**id) && **id > last_good && matches!(stream.reply, ReplyState::Awaited)
                });
                for id in missed.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.receive_reset(id, ResetStatus::RefusedStream);
                }
                self.close_if_drained();
            }
            // Kubernetes' SPDY has no flow control and no settings.
            Frame::Settings { .. } | Frame::WindowUpdate { .. } => {}
        }
        FrameOutcome::Done
    }

    /// Processes an error of the decoder.
    pub(crate) fn receive_error(&mut self, error: codec::Error) {
        match error {
            codec::Error::Stream { id, .. } => {
                if self.is_peers(id) && id > self.last_peer_id {
                    self.last_peer_id = id;
                }
                self.fail_stream(id, ResetStatus::ProtocolError);
            }
            fatal => self.fail(Error::Protocol(fatal)),
        }
    }

    fn receive_syn_stream(
        &mut self,
        id: StreamId,
        priority: u8,
        headers: Headers,
        fin: bool,
        unidirectional: bool,
    ) {
        if !self.is_peers(id) || id <= self.last_peer_id {
            // An invalid or used ID. An existing stream with this ID fails too: the peer considers it reset.
            self.fail_stream(id, ResetStatus::ProtocolError);
            return;
        }
        self.last_peer_id = id;
        let most = self.config.max_streams.unwrap_or(if self.role == Role::Server { MAX_STREAMS } else { 0 });
        let size = headers.size();
        if self.received_go_away
            || self.peer_streams >= most
            || self.header_bytes.saturating_add(size) > self.config.max_header_bytes
        {
            self.send_reset(id, ResetStatus::RefusedStream);
            return;
        }
        let core = Arc::new(StreamCore { id, headers, priority, closed: Notify::new() });
        let mut stream = StreamState::new(core, ReplyState::Owed);
        stream.header_bytes = size;
        if fin {
            stream.remote = HalfState::Finished;
        }
        if unidirectional {
            stream.local = HalfState::Finished;
        } else if let Some(error) = self.send_failure() {
            stream.local = HalfState::Failed(error);
        }
        self.header_bytes += size;
        self.peer_streams += 1;
        self.streams.insert(id, stream);
        self.backlog.push_back(id);
        self.wakeups.arrived = true;
    }

    fn receive_reply(&mut self, id: StreamId, headers: Headers, fin: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return self.unknown_stream(id) };
        if !matches!(stream.reply, ReplyState::Awaited) {
            return self.fail_stream(id, ResetStatus::StreamInUse);
        }
        stream.reply = ReplyState::Received(headers);
        self.wakeups.wakers.extend(stream.read_waker.take());
        if fin {
            stream.finish_remote(&mut self.wakeups);
        }
    }

    fn receive_headers(&mut self, id: StreamId, headers: Headers, fin: bool) {
        let most = self.config.max_header_bytes;
        let Some(stream) = self.streams.get_mut(&id) else { return self.unknown_stream(id) };
        if matches!(stream.remote, HalfState::Finished) {
            return self.fail_stream(id, ResetStatus::StreamAlreadyClosed);
        }
        if stream.has_reader && stream.remote.is_open() {
            let size = headers.size();
            if stream.trailing_headers.len() >= MAX_TRAILING_HEADERS
                || self.header_bytes.saturating_add(size) > most
            {
                return self.fail_stream(id, ResetStatus::FrameTooLarge);
            }
            self.header_bytes += size;
            stream.header_bytes += size;
            stream.trailing_headers.push(headers);
        }
        if fin {
            stream.finish_remote(&mut self.wakeups);
        }
    }

    fn receive_reset(&mut self, id: StreamId, status: ResetStatus) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.fail(&Error::Reset(status), &mut self.wakeups);
            self.drop_unaccepted(id);
        }
    }

    /// The peer violated the protocol on a stream: the stream is reset, if it exists.
    fn fail_stream(&mut self, id: StreamId, status: ResetStatus) {
        if self.streams.contains_key(&id) {
            self.reset(id, status);
            self.drop_unaccepted(id);
        } else {
            self.send_reset(id, status);
        }
    }

    /// A stream that is closed before it was accepted is removed from the backlog.
    fn drop_unaccepted(&mut self, id: StreamId) {
        if let Some(index) = self.backlog.iter().position(|waiting| *waiting == id) {
            self.backlog.remove(index);
            self.release(id, ResetStatus::Cancel);
        }
    }

    /// A frame for a stream that does not exist: ignored if it existed before, otherwise reset.
    fn unknown_stream(&mut self, id: StreamId) {
        let has_been = if self.is_peers(id) { id <= self.last_peer_id } else { id < self.next_id };
        if !has_been {
            self.send_reset(id, ResetStatus::InvalidStream);
        }
    }

    fn is_our_ping(&self, id: u32) -> bool {
        id % 2 == self.next_ping % 2
    }
}
