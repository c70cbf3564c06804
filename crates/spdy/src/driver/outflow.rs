//! From the queue to the carrier.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;

use crate::{
    Error,
    state::{Outgoing, Shared},
};

/// So many frames are written at once; each is two slices.
const FRAMES: usize = 32;

/// About so many bytes are written at once.
const BYTES: usize = 256 << 10;

/// About so many bytes are gathered for a carrier that takes one slice at a time, such as a WebSocket.
const STAGE: usize = 64 << 10;

/// Frames on their way out.
#[derive(Debug, Default)]
pub(super) struct Outflow {
    frames: VecDeque<Outgoing>,
    /// What the carrier has of the first of them.
    written: usize,
    /// The same bytes in one piece, where the carrier needs that.
    stage: BytesMut,
    /// Frames that the carrier has whole.
    done: Vec<Outgoing>,
    needs_flush: bool,
    failure: Option<Error>,
}

impl Outflow {
    /// Writes what it can at once, and answers how much; 0 when everything is written and flushed. An error is for good.
    pub(super) fn write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Error>> {
        if let Some(error) = &self.failure {
            return Poll::Ready(Err(error.clone()));
        }
        let result = ready!(self.try_write(io, shared, context));
        Poll::Ready(result.map_err(|error| {
            self.frames = VecDeque::new();
            self.stage = BytesMut::new();
            self.failure.insert(Error::Io(Arc::new(error))).clone()
        }))
    }

    fn try_write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let vectored = io.is_write_vectored();
        if self.frames.is_empty() {
            let bytes = if vectored { BYTES } else { STAGE };
            shared.with(|state| state.outbox.take(FRAMES, bytes, &mut self.frames));
        }
        if self.frames.is_empty() {
            if self.needs_flush {
                ready!(Pin::new(io).poll_flush(context))?;
                self.needs_flush = false;
            }
            return Poll::Ready(Ok(0));
        }
        let result = if vectored { self.write_slices(io, context) } else { self.write_stage(io, context) };
        let bytes = ready!(result)?;
        if bytes == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.needs_flush = true;
        if !self.done.is_empty() {
            let (done, frames) = (&mut self.done, &mut self.frames);
            shared.with(|state| {
                state.written(done.drain(..));
                if vectored && frames.len() < FRAMES / 2 {
                    state.outbox.take(FRAMES / 2, BYTES / 2, frames);
                }
            });
        }
        Poll::Ready(Ok(bytes))
    }

    fn write_slices<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); 2 * FRAMES];
        let mut used = 0;
        let mut skip = self.written;
        for frame in self.frames.iter().take(FRAMES) {
            for part in [&frame.head[..], &frame.body] {
                let rest = &part[skip.min(part.len())..];
                skip -= part.len() - rest.len();
                if !rest.is_empty() {
                    slices[used] = IoSlice::new(rest);
                    used += 1;
                }
            }
        }
        let bytes = ready!(Pin::new(io).poll_write_vectored(context, &slices[..used]))?;
        self.written += bytes;
        while let Some(frame) = self.frames.front()
            && self.written >= frame.len()
        {
            self.written -= frame.len();
            self.done.extend(self.frames.pop_front());
        }
        Poll::Ready(Ok(bytes))
    }

    fn write_stage<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.stage.is_empty() {
            self.stage.reserve(self.frames.iter().map(Outgoing::len).sum());
            for frame in &self.frames {
                self.stage.extend_from_slice(&frame.head);
                self.stage.extend_from_slice(&frame.body);
            }
        }
        let bytes = ready!(Pin::new(io).poll_write(context, &self.stage))?;
        self.stage.advance(bytes);
        if self.stage.is_empty() {
            self.stage = BytesMut::new();
            self.done.extend(self.frames.drain(..));
        }
        Poll::Ready(Ok(bytes))
    }
}
