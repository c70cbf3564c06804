//! Reads frames from the transport and dispatches them to streams.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::{
    Error,
    codec::{Decoder, Frame, FrameLimits},
    state::{ConnectionHandle, FrameOutcome},
};

/// Read size.
const READ_SIZE: usize = 64 << 10;

/// Reads and dispatches frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    decoder: Decoder,
    buffer: BytesMut,
    /// A frame whose stream has no room. Reading stops until it is delivered.
    waiting: Option<Frame>,
    /// Too many replies are queued: reading stops until they are written.
    is_reply_limit_reached: bool,
}

impl FrameReader {
    pub(super) fn new(limits: FrameLimits) -> Self {
        Self {
            decoder: Decoder::new(limits),
            buffer: BytesMut::new(),
            waiting: None,
            is_reply_limit_reached: false,
        }
    }

    /// Whether the peer may close the connection here.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.buffer.is_empty() && self.waiting.is_none() && self.decoder.at_boundary()
    }

    /// Whether reading is blocked by a slow reader.
    pub(super) fn is_blocked(&self) -> bool {
        self.waiting.is_some() || self.is_reply_limit_reached
    }

    /// Dispatches what has been read, and reads once; `false` at the end of the transport.
    pub(super) fn read<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        handle: &ConnectionHandle,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, Error>> {
        ready!(self.dispatch(handle));
        let bytes = ready!(self.fill(io, context))?;
        if bytes > 0 {
            // If it blocks here, the next call notices.
            let _ = self.dispatch(handle);
        }
        Poll::Ready(Ok(bytes > 0))
    }

    /// Reads once and drops the data; `false` at the end of the transport, or if it fails.
    pub(super) fn discard<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        context: &mut Context<'_>,
    ) -> Poll<bool> {
        self.waiting = None;
        self.buffer.clear();
        let bytes = ready!(self.fill(io, context)).unwrap_or(0);
        self.buffer.clear();
        Poll::Ready(bytes > 0)
    }

    fn fill<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Error>> {
        if self.buffer.capacity() - self.buffer.len() < READ_SIZE / 8 {
            self.buffer.reserve(READ_SIZE);
        }
        let polled = pin!(io.read_buf(&mut self.buffer)).poll(context);
        if polled.is_pending() && self.buffer.is_empty() {
            // An idle connection holds no buffer; there may be thousands.
            self.buffer = BytesMut::new();
        }
        polled.map_err(|error| Error::Io(Arc::new(error)))
    }

    /// Delivers all frames in the buffer to their streams. Pending while one of them has no room.
    fn dispatch(&mut self, handle: &ConnectionHandle) -> Poll<()> {
        loop {
            if self.is_reply_limit_reached {
                self.is_reply_limit_reached = handle.with(|state| state.send_queue.is_reply_limit_reached());
            }
            if self.is_reply_limit_reached {
                return Poll::Pending;
            }
            let frame = match self.waiting.take() {
                Some(frame) => frame,
                None => match self.decoder.decode(&mut self.buffer) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Poll::Ready(()),
                    Err(error) => {
                        let is_fatal = error.stream().is_none();
                        self.is_reply_limit_reached = handle.with(|state| {
                            state.receive_error(error);
                            state.send_queue.is_reply_limit_reached()
                        });
                        if is_fatal {
                            // The connection closes, and further data is dropped.
                            self.buffer.clear();
                            return Poll::Pending;
                        }
                        continue;
                    }
                },
            };
            if let FrameOutcome::Blocked(frame) = handle.with(|state| state.receive(frame)) {
                self.waiting = Some(frame);
                return Poll::Pending;
            }
        }
    }
}
