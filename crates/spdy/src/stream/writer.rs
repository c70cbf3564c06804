//! What is sent to the peer.

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
    state::{Core, Shared, Side, State},
};

/// The longest DATA frame that is made. Go's side allocates every frame anew, and a longer one would keep other streams waiting.
const FRAME: usize = 64 << 10;

/// The sending half of a [`Stream`](crate::Stream). Dropping it without [`finish`](Self::finish) sends nothing as long as the other half is there: the
/// peer is not told of an end that is none. Both gone, the stream is reset.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    core: Arc<Core>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, core: Arc<Core>) -> Self {
        Self { shared, core }
    }

    /// The stream's number.
    pub fn id(&self) -> StreamId {
        self.core.id
    }

    /// What the stream was opened with.
    pub fn headers(&self) -> &Headers {
        &self.core.headers
    }

    /// Sends bytes without a copy; waits for room. When the future is dropped, a part may have been sent.
    pub async fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            poll_fn(|context| self.poll_room(context)).await?;
            let frame = bytes.split_to(bytes.len().min(FRAME));
            self.push(frame)?;
        }
        Ok(())
    }

    /// Sends FIN: this side has nothing more to send. It is queued behind what was written; nothing has to be waited for. Doing it
    /// twice is no error.
    pub fn finish(&mut self) -> io::Result<()> {
        let id = self.core.id;
        self.shared.with(|state| {
            match local(state, id) {
                Ok(()) => {}
                Err(None) => return Ok(()),
                Err(Some(error)) => return Err(write_error(error)),
            }
            state.push_data(id, Bytes::new(), true);
            if let Some(entry) = state.streams.get_mut(&id) {
                entry.finish_local(&mut state.signals);
            }
            Ok(())
        })
    }

    /// Sends more headers, in order with what was written; waits for room.
    pub async fn send_headers(&mut self, headers: &Headers) -> io::Result<()> {
        poll_fn(|context| self.poll_room(context)).await?;
        let id = self.core.id;
        self.shared.with(|state| {
            local(state, id).map_err(|error| write_error(error.unwrap_or(Error::Closed)))?;
            Ok(state.control(&Frame::Headers { id, headers: headers.clone(), fin: false })?)
        })
    }

    /// Waits until nothing can pass any more: the peer has reset the stream, the connection has ended, or both sides have finished.
    pub async fn closed(&self) {
        super::over(&self.shared, &self.core).await;
    }

    /// Resets the stream in both directions, after what was written to it.
    pub fn reset(self, status: ResetStatus) {
        self.shared.with(|state| state.reset(self.core.id, status));
    }

    /// Waits until something can be queued.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.core.id;
        self.shared.with(|state| {
            if let Err(error) = local(state, id) {
                return Poll::Ready(Err(write_error(error.unwrap_or(Error::Closed))));
            }
            let unsent = state.streams.get(&id).map_or(0, |entry| entry.unsent);
            if state.has_room(unsent) {
                return Poll::Ready(Ok(()));
            }
            if let Some(entry) = state.streams.get_mut(&id) {
                state.signals.register(&mut entry.write_waker, context.waker());
            }
            state.await_room(id);
            Poll::Pending
        })
    }

    fn push(&self, frame: Bytes) -> io::Result<()> {
        let id = self.core.id;
        self.shared.with(|state| {
            local(state, id).map_err(|error| write_error(error.unwrap_or(Error::Closed)))?;
            state.push_data(id, frame, false);
            Ok(())
        })
    }
}

/// Whether the stream can be written to: `Err(None)` when it was finished.
fn local(state: &State, id: StreamId) -> Result<(), Option<Error>> {
    match state.streams.get(&id).map(|entry| &entry.local) {
        Some(Side::Open) => Ok(()),
        Some(Side::Lost(error)) => Err(Some(error.clone())),
        Some(Side::Finished) | None => Err(None),
    }
}

/// Whatever the reason, for one who writes it is a broken pipe; the reason is inside.
fn write_error(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_room(context))?;
        // Copied without the lock. Another stream may take the room meanwhile; then a little more than the limit is queued.
        let frame = Bytes::copy_from_slice(&buffer[..buffer.len().min(FRAME)]);
        let length = frame.len();
        self.push(frame)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let id = self.core.id;
        self.shared.with(|state| {
            let Some(entry) = state.streams.get_mut(&id) else { return Poll::Ready(Ok(())) };
            match &entry.local {
                _ if entry.unsent == 0 => Poll::Ready(Ok(())),
                Side::Lost(error) => Poll::Ready(Err(write_error(error.clone()))),
                Side::Open | Side::Finished => {
                    state.signals.register(&mut entry.write_waker, context.waker());
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
        self.shared.with(|state| {
            if let Some(entry) = state.streams.get_mut(&id) {
                entry.has_writer = false;
                if !entry.has_reader {
                    state.forget(id, ResetStatus::Cancel);
                }
            }
        });
    }
}
