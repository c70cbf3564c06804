//! The receiving half of a stream.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use crate::{
    codec::{Headers, ResetStatus, StreamId},
    state::{ConnectionHandle, HalfState, StreamCore},
};

/// The receiving half of a [`Stream`](crate::Stream). When it is dropped, received data is dropped; the sending half is not affected.
///
/// It must be read or dropped: when it has [`receive_buffer`](crate::Config::receive_buffer) bytes, the whole connection blocks.
#[derive(Debug)]
pub struct Reader {
    pub(super) handle: Arc<ConnectionHandle>,
    core: Arc<StreamCore>,
    current: Bytes,
}

impl Reader {
    pub(super) fn new(handle: Arc<ConnectionHandle>, core: Arc<StreamCore>) -> Self {
        Self { handle, core, current: Bytes::new() }
    }

    /// The stream's ID.
    pub fn id(&self) -> StreamId {
        self.core.id
    }

    /// The headers it was opened with.
    pub fn headers(&self) -> &Headers {
        &self.core.headers
    }

    /// The next bytes, without a copy; `None` after the peer's FIN. Cancel-safe.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|context| self.poll_chunk(context)).await
    }

    /// Polls for [`chunk`](Self::chunk).
    pub fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.current))));
        }
        let id = self.core.id;
        self.handle.with(|state| {
            if let Some(chunk) = state.take_chunk(id) {
                return Poll::Ready(Ok(Some(chunk)));
            }
            // The stream exists as long as its reader.
            let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Ok(None)) };
            match &stream.remote {
                HalfState::Open => {
                    state.wakeups.register(&mut stream.read_waker, context.waker());
                    Poll::Pending
                }
                HalfState::Finished => Poll::Ready(Ok(None)),
                HalfState::Failed(error) => Poll::Ready(Err(error.clone().into())),
            }
        })
    }

    /// Headers received since the stream was opened.
    pub fn trailing_headers(&mut self) -> Vec<Headers> {
        self.handle.with(|state| state.take_trailing_headers(self.core.id))
    }

    /// Waits until the stream is closed: the peer has reset it, the connection has ended, or both sides have finished.
    pub async fn closed(&self) {
        super::over(&self.handle, &self.core).await;
    }
}

impl AsyncBufRead for Reader {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let reader = self.get_mut();
        if reader.current.is_empty()
            && let Some(chunk) = ready!(reader.poll_chunk(context))?
        {
            reader.current = chunk;
        }
        Poll::Ready(Ok(&reader.current))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.current.advance(amount);
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let available = ready!(self.as_mut().poll_fill_buf(context))?;
        let length = available.len().min(buffer.remaining());
        buffer.put_slice(&available[..length]);
        self.consume(length);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let id = self.core.id;
        self.handle.with(|state| {
            state.drop_reader(id);
            if state.streams.get(&id).is_some_and(|stream| !stream.has_writer) {
                state.release(id, ResetStatus::Cancel);
            }
        });
    }
}
