//! Streams: bytes both ways.

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
    state::{Core, Entry, Reply, Shared},
};

/// A stream of a connection: bytes both ways, each way with an end of its own.
///
/// Reading ends with the peer's FIN and nothing else: when the stream is reset or the connection lost, what has arrived can be read
/// and then there is an error. Writing waits when the connection cannot take more. Shutting down sends FIN; flushing waits until
/// the carrier has the bytes. A stream that is dropped before both sides have finished is reset, after what was written to it.
#[derive(Debug)]
pub struct Stream {
    reader: Reader,
    writer: Writer,
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, core: Arc<Core>) -> Self {
        let reader = Reader::new(Arc::clone(&shared), Arc::clone(&core));
        Self { reader, writer: Writer::new(shared, core) }
    }

    /// Its number.
    pub fn id(&self) -> StreamId {
        self.writer.id()
    }

    /// What it was opened with.
    pub fn headers(&self) -> &Headers {
        self.writer.headers()
    }

    /// What the peer accepted it with, if it was opened here.
    pub fn reply_headers(&self) -> Headers {
        self.reader.shared.with(|state| match state.streams.get(&self.id()).map(|entry| &entry.reply) {
            Some(Reply::Received(headers)) => headers.clone(),
            _ => Headers::new(),
        })
    }

    /// The next bytes, as they came and without a copy; `None` after the peer's FIN.
    pub async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        self.reader.chunk().await
    }

    /// Sends bytes without a copy; waits for room.
    pub async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.writer.send(bytes).await
    }

    /// Sends FIN: this side has nothing more to send. The same as shutting down.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.finish()
    }

    /// Waits until nothing can pass any more: the peer has reset the stream, the connection has ended, or both sides have finished.
    pub async fn closed(&self) {
        self.writer.closed().await;
    }

    /// Resets the stream, after what was written to it.
    pub fn reset(self, status: ResetStatus) {
        self.writer.reset(status);
    }

    /// The two directions, to be used by different tasks. The stream is dropped when both are.
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
async fn over(shared: &Shared, core: &Core) {
    loop {
        let over = core.over.notified();
        if shared.with(|state| state.streams.get(&core.id).is_none_or(Entry::is_over)) {
            return;
        }
        over.await;
    }
}
