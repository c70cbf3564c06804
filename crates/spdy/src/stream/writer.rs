//! The sending half of a stream.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::{
    Error,
    codec::{Frame, Headers, ResetStatus, StreamId},
    state::{ConnectionHandle, ConnectionState, HalfState, StreamCore},
};

/// The longest DATA frame that is sent. Go allocates every frame, and a longer one would delay other streams.
const FRAME: usize = 64 << 10;

/// The sending half of a [`Stream`](crate::Stream). Dropping it without [`finish`](Self::finish) sends nothing while the other half
/// exists: the peer must not see a regular end. When both are dropped, the stream is reset.
#[derive(Debug)]
pub struct Writer {
    handle: Arc<ConnectionHandle>,
    core: Arc<StreamCore>,
}

impl Writer {
    pub(super) fn new(handle: Arc<ConnectionHandle>, core: Arc<StreamCore>) -> Self {
        Self { handle, core }
    }

    /// The stream's ID.
    pub fn id(&self) -> StreamId {
        self.core.id
    }

    /// The headers it was opened with.
    pub fn headers(&self) -> &Headers {
        &self.core.headers
    }

    /// Sends bytes without a copy; waits for room. If the future is dropped, a part may have been sent.
    pub async fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            poll_fn(|context| self.poll_room(context)).await?;
            let frame = bytes.split_to(bytes.len().min(FRAME));
            self.push(frame)?;
        }
        Ok(())
    }

    /// Sends FIN. It is queued behind what was written, without waiting. Calling it twice is allowed.
    pub fn finish(&mut self) -> io::Result<()> {
        let id = self.core.id;
        self.handle.with(|state| {
            match local(state, id) {
                Ok(()) => {}
                Err(None) => return Ok(()),
                Err(Some(error)) => return Err(write_error(error)),
            }
            state.push_data(id, Bytes::new(), true);
            if let Some(stream) = state.streams.get_mut(&id) {
                stream.finish_local(&mut state.wakeups);
            }
            Ok(())
        })
    }

    /// Sends headers, in order with what was written; waits for room.
    pub async fn send_headers(&mut self, headers: &Headers) -> io::Result<()> {
        poll_fn(|context| self.poll_room(context)).await?;
        let id = self.core.id;
        self.handle.with(|state| {
            local(state, id).map_err(|error| write_error(error.unwrap_or(Error::Closed)))?;
            Ok(state.send_control(&Frame::Headers { id, headers: headers.clone(), fin: false })?)
        })
    }

    /// Waits until the stream is closed: the peer has reset it, the connection has ended, or both sides have finished.
    pub async fn closed(&self) {
        super::over(&self.handle, &self.core).await;
    }

    /// Resets the stream in both directions, after what was written to it.
    pub fn reset(self, status: ResetStatus) {
        self.handle.with(|state| state.reset(self.core.id, status));
    }

    /// Waits for room in the send queue.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.core.id;
        self.handle.with(|state| {
            if let Err(error) = local(state, id) {
                return Poll::Ready(Err(write_error(error.unwrap_or(Error::Closed))));
            }
            let unsent = state.streams.get(&id).map_or(0, |stream| stream.unsent);
            if state.has_room(unsent) {
                return Poll::Ready(Ok(()));
            }
            if let Some(stream) = state.streams.get_mut(&id) {
                state.wakeups.register(&mut stream.write_waker, context.waker());
            }
            state.wait_for_room(id);
            Poll::Pending
        })
    }

    fn push(&self, frame: Bytes) -> io::Result<()> {
        let id = self.core.id;
        self.handle.with(|state| {
            local(state, id).map_err(|error| write_error(error.unwrap_or(Error::Closed)))?;
            state.push_data(id, frame, false);
            Ok(())
        })
    }
}

/// Whether the stream can be written to: `Err(None)` if it was finished.
fn local(state: &ConnectionState, id: StreamId) -> Result<(), Option<Error>> {
    match state.streams.get(&id).map(|stream| &stream.local) {
        Some(HalfState::Open) => Ok(()),
        Some(HalfState::Failed(error)) => Err(Some(error.clone())),
        Some(HalfState::Finished) | None => Err(None),
    }
}

/// For writers every error is a broken pipe, with the reason as its source.
fn write_error(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_room(context))?;
        // Copied without the lock. Another stream may take the room meanwhile; then slightly more than the limit is queued.
        let frame = Bytes::copy_from_slice(&buffer[..buffer.len().min(FRAME)]);
        let length = frame.len();
        self.push(frame)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.core.id;
        self.handle.with(|state| {
            let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Ok(())) };
            match &stream.local {
                _ if stream.unsent == 0 => Poll::Ready(Ok(())),
                HalfState::Failed(error) => Poll::Ready(Err(write_error(error.clone()))),
                HalfState::Open | HalfState::Finished => {
                    state.wakeups.register(&mut stream.write_waker, context.waker());
                    Poll::Pending
                }
            }
        })
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let id = self.core.id;
        self.handle.with(|state| {
            if let Some(stream) = state.streams.get_mut(&id) {
                stream.has_writer = false;
                if !stream.has_reader {
                    state.release(id, ResetStatus::Cancel);
                }
            }
        });
    }
}
