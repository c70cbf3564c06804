//! What the peer sends.

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
    state::{Core, Shared, Side},
};

/// The receiving half of a [`Stream`](crate::Stream). When it is dropped, what the peer sends is thrown away; the writing half goes
/// on.
///
/// Somebody has to read it or drop it: when it has [`receive_buffer`](crate::Config::receive_buffer) bytes waiting, the whole connection
/// waits.
#[derive(Debug)]
pub struct Reader {
    pub(super) shared: Arc<Shared>,
    core: Arc<Core>,
    current: Bytes,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, core: Arc<Core>) -> Self {
        Self { shared, core, current: Bytes::new() }
    }

    /// The stream's number.
    pub fn id(&self) -> StreamId {
        self.core.id
    }

    /// What the stream was opened with.
    pub fn headers(&self) -> &Headers {
        &self.core.headers
    }

    /// The next bytes, as they came and without a copy; `None` after the peer's FIN. Nothing is lost when the future is dropped.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        poll_fn(|context| self.poll_chunk(context)).await
    }

    /// As [`chunk`](Self::chunk).
    pub fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        if !self.current.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.current))));
        }
        let id = self.core.id;
        self.shared.with(|state| {
            if let Some(chunk) = state.take_chunk(id) {
                return Poll::Ready(Ok(Some(chunk)));
            }
            // There is an entry as long as there is a reader.
            let Some(entry) = state.streams.get_mut(&id) else { return Poll::Ready(Ok(None)) };
            match &entry.remote {
                Side::Open => {
                    state.signals.register(&mut entry.read_waker, context.waker());
                    Poll::Pending
                }
                Side::Finished => Poll::Ready(Ok(None)),
                Side::Lost(error) => Poll::Ready(Err(error.clone().into())),
            }
        })
    }

    /// Headers that the peer has sent since the stream was opened.
    pub fn later_headers(&mut self) -> Vec<Headers> {
        self.shared.with(|state| state.take_later_headers(self.core.id))
    }

    /// Waits until nothing can pass any more: the peer has reset the stream, the connection has ended, or both sides have finished.
    pub async fn closed(&self) {
        super::over(&self.shared, &self.core).await;
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
        self.shared.with(|state| {
            state.drop_reader(id);
            if state.streams.get(&id).is_some_and(|entry| !entry.has_writer) {
                state.forget(id, ResetStatus::Cancel);
            }
        });
    }
}
