//! Streams.

mod reader;
mod writer;

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

pub use self::{reader::Reader, writer::Writer};
use crate::{
    codec::{Headers, ResetStatus, StreamId},
    state::{ConnectionHandle, ReplyState, StreamCore, StreamState},
};

/// A bidirectional stream; each direction is closed separately.
///
/// Reads end only with the peer's FIN: if the stream is reset or the connection is lost, received data can be read, followed by an
/// error. Writes wait for room in the send queue. Shutdown sends FIN; flush waits until the transport has the bytes. A stream that is
/// dropped before both sides have finished is reset, after what was written to it.
#[derive(Debug)]
pub struct Stream {
    reader: Reader,
    writer: Writer,
}

impl Stream {
    pub(crate) fn new(handle: Arc<ConnectionHandle>, core: Arc<StreamCore>) -> Self {
        let reader = Reader::new(Arc::clone(&handle), Arc::clone(&core));
        Self { reader, writer: Writer::new(handle, core) }
    }

    /// The stream's ID.
    pub fn id(&self) -> StreamId {
        self.writer.id()
    }

    /// The headers it was opened with.
    pub fn headers(&self) -> &Headers {
        self.writer.headers()
    }

    /// The headers of the peer's reply, if it was opened here.
    pub fn reply_headers(&self) -> Headers {
        self.reader.handle.with(|state| match state.streams.get(&self.id()).map(|stream| &stream.reply) {
            Some(ReplyState::Received(headers)) => headers.clone(),
            _ => Headers::new(),
        })
    }

    /// The next bytes, without a copy; `None` after the peer's FIN.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        self.reader.chunk().await
    }

    /// Sends bytes without a copy; waits for room.
    pub async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.writer.send(bytes).await
    }

    /// Sends FIN, like a shutdown.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.finish()
    }

    /// Waits until the stream is closed: the peer has reset it, the connection has ended, or both sides have finished.
    pub async fn closed(&self) {
        self.writer.closed().await;
    }

    /// Resets the stream, after what was written to it.
    pub fn reset(self, status: ResetStatus) {
        self.writer.reset(status);
    }

    /// Splits the stream into its directions. It is dropped when both are.
    pub fn split(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().reader).poll_fill_buf(context)
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        Pin::new(&mut self.reader).consume(amount);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

/// Waits for the end of a stream.
async fn over(handle: &ConnectionHandle, core: &StreamCore) {
    loop {
        let over = core.closed.notified();
        if handle.with(|state| state.streams.get(&core.id).is_none_or(StreamState::is_closed)) {
            return;
        }
        over.await;
    }
}
