//! Writes queued frames to the transport.

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
    state::{ConnectionHandle, QueuedFrame},
};

/// Frames in one write; each is two slices.
const MAX_FRAMES: usize = 32;

/// Approximate bytes in one write.
const MAX_BYTES: usize = 256 << 10;

/// Approximate bytes gathered for a transport without vectored writes, such as a WebSocket.
const STAGING_SIZE: usize = 64 << 10;

/// Writes frames.
#[derive(Debug, Default)]
pub(super) struct FrameWriter {
    frames: VecDeque<QueuedFrame>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// The frames in one piece, for a transport without vectored writes.
    staging: BytesMut,
    /// Frames that are completely written.
    done: Vec<QueuedFrame>,
    needs_flush: bool,
    failure: Option<Error>,
}

impl FrameWriter {
    /// Writes what it can, and returns the number of bytes; 0 if everything is written and flushed. Errors are permanent.
    pub(super) fn write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        handle: &ConnectionHandle,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Error>> {
        if let Some(error) = &self.failure {
            return Poll::Ready(Err(error.clone()));
        }
        let result = ready!(self.try_write(io, handle, context));
        Poll::Ready(result.map_err(|error| {
            self.frames = VecDeque::new();
            self.staging = BytesMut::new();
            self.failure.insert(Error::Io(Arc::new(error))).clone()
        }))
    }

    fn try_write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        handle: &ConnectionHandle,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let vectored = io.is_write_vectored();
        if self.frames.is_empty() {
            let bytes = if vectored { MAX_BYTES } else { STAGING_SIZE };
            handle.with(|state| state.send_queue.take(MAX_FRAMES, bytes, &mut self.frames));
        }
        if self.frames.is_empty() {
            if self.needs_flush {
                ready!(Pin::new(io).poll_flush(context))?;
                self.needs_flush = false;
            }
            return Poll::Ready(Ok(0));
        }
        let result = if vectored { self.write_slices(io, context) } else { self.write_staged(io, context) };
        let bytes = ready!(result)?;
        if bytes == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.needs_flush = true;
        if !self.done.is_empty() {
            let (done, frames) = (&mut self.done, &mut self.frames);
            handle.with(|state| {
                state.written(done.drain(..));
                if vectored && frames.len() < MAX_FRAMES / 2 {
                    state.send_queue.take(MAX_FRAMES / 2, MAX_BYTES / 2, frames);
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
        let mut slices = [IoSlice::new(&[]); 2 * MAX_FRAMES];
        let mut used = 0;
        let mut skip = self.written;
        for frame in self.frames.iter().take(MAX_FRAMES) {
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

    fn write_staged<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.staging.is_empty() {
            self.staging.reserve(self.frames.iter().map(QueuedFrame::len).sum());
            for frame in &self.frames {
                self.staging.extend_from_slice(&frame.head);
                self.staging.extend_from_slice(&frame.body);
            }
        }
        let bytes = ready!(Pin::new(io).poll_write(context, &self.staging))?;
        self.staging.advance(bytes);
        if self.staging.is_empty() {
            self.staging = BytesMut::new();
            self.done.extend(self.frames.drain(..));
        }
        Poll::Ready(Ok(bytes))
    }
}
