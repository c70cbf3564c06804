//! From the carrier to the streams.

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
    codec::{Decoder, Frame, Limits},
    state::{Received, Shared},
};

/// How much is read at once.
const READ: usize = 64 << 10;

/// Frames on their way in.
#[derive(Debug)]
pub(super) struct Intake {
    decoder: Decoder,
    buffer: BytesMut,
    /// A frame that its stream has no room for yet. Nothing is read before it has found its place.
    waiting: Option<Frame>,
    /// Answers to what the peer did wrong have piled up: nothing is read before they are written.
    is_choked: bool,
}

impl Intake {
    pub(super) fn new(limits: Limits) -> Self {
        Self { decoder: Decoder::new(limits), buffer: BytesMut::new(), waiting: None, is_choked: false }
    }

    /// Whether the peer may close here.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.buffer.is_empty() && self.waiting.is_none() && self.decoder.at_boundary()
    }

    /// Whether nothing is read because somebody has to read first.
    pub(super) fn is_stalled(&self) -> bool {
        self.waiting.is_some() || self.is_choked
    }

    /// Hands on what has been read, and reads once; `false` at the end of the carrier.
    pub(super) fn read<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, Error>> {
        ready!(self.hand_on(shared));
        let bytes = ready!(self.fill(io, context))?;
        if bytes > 0 {
            // That it stops here is seen at the next call.
            let _ = self.hand_on(shared);
        }
        Poll::Ready(Ok(bytes > 0))
    }

    /// Reads once and forgets what was read; `false` at the end of the carrier, or when it fails.
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
        if self.buffer.capacity() - self.buffer.len() < READ / 8 {
            self.buffer.reserve(READ);
        }
        let polled = pin!(io.read_buf(&mut self.buffer)).poll(context);
        if polled.is_pending() && self.buffer.is_empty() {
            // A connection that waits holds no buffer; there may be thousands.
            self.buffer = BytesMut::new();
        }
        polled.map_err(|error| Error::Io(Arc::new(error)))
    }

    /// Gives every frame of the buffer to its stream. Pending while one of them finds no room.
    fn hand_on(&mut self, shared: &Shared) -> Poll<()> {
        loop {
            if self.is_choked {
                self.is_choked = shared.with(|state| state.outbox.is_choked());
            }
            if self.is_choked {
                return Poll::Pending;
            }
            let frame = match self.waiting.take() {
                Some(frame) => frame,
                None => match self.decoder.decode(&mut self.buffer) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Poll::Ready(()),
                    Err(error) => {
                        let is_fatal = error.stream().is_none();
                        self.is_choked = shared.with(|state| {
                            state.receive_error(error);
                            state.outbox.is_choked()
                        });
                        if is_fatal {
                            // The connection closes, and what comes is thrown away.
                            self.buffer.clear();
                            return Poll::Pending;
                        }
                        continue;
                    }
                },
            };
            if let Received::Later(frame) = shared.with(|state| state.receive(frame)) {
                self.waiting = Some(frame);
                return Poll::Pending;
            }
        }
    }
}
