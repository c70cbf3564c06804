//! The streams of a connection over SPDY or WebSocket: [`StreamReader`] for data from the peer, [`StreamWriter`] for data to it.

pub(crate) mod channel_codec;
pub(crate) mod tunnel;
pub(crate) mod websocket;

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::activity::ActivityTracker;

/// Initial read buffer: most sessions carry little data.
const MIN_BUFFER: usize = 4 << 10;
/// The buffer of a busy stream grows up to this.
const MAX_BUFFER: usize = 64 << 10;

/// Data of a WebSocket channel.
#[derive(Debug)]
pub(crate) enum ChannelChunk {
    Data(Bytes),
    End,
}

/// Reads bytes from the peer.
#[derive(Debug)]
pub(crate) enum StreamReader {
    /// A WebSocket channel. It ends with [`ChannelChunk::End`]; a queue that closes without it means a lost connection.
    Channel(mpsc::Receiver<ChannelChunk>),
    /// A SPDY stream.
    Spdy(vk_spdy::Reader),
}

/// Writes bytes to the peer.
#[derive(Debug)]
pub(crate) enum StreamWriter {
    /// A WebSocket channel.
    Channel(websocket::ChannelSender),
    /// A SPDY stream.
    Spdy(vk_spdy::Writer),
}

impl StreamReader {
    /// The next bytes; `None` at the end. A lost connection is an error, not an end.
    pub(crate) async fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Self::Channel(queue) => match queue.recv().await {
                Some(ChannelChunk::Data(bytes)) => Ok(Some(bytes)),
                Some(ChannelChunk::End) => {
                    queue.close();
                    Ok(None)
                }
                None => Err(io::ErrorKind::ConnectionAborted.into()),
            },
            Self::Spdy(stream) => stream.chunk().await,
        }
    }

    /// Reads to the end, and keeps up to `limit` bytes. Also returns how it ended: servers in Go end connections by resetting streams,
    /// after they have sent everything.
    pub(crate) async fn read_all(&mut self, limit: usize) -> (Vec<u8>, io::Result<()>) {
        let mut all = Vec::new();
        loop {
            match self.next_chunk().await {
                Ok(Some(bytes)) => {
                    let room = limit.saturating_sub(all.len()).min(bytes.len());
                    all.extend_from_slice(&bytes[..room]);
                }
                Ok(None) => return (all, Ok(())),
                Err(error) => return (all, Err(error)),
            }
        }
    }
}

impl StreamWriter {
    /// Prepares a buffer for a payload: adds what precedes it on this transport.
    fn begin_frame(&self, buffer: &mut BytesMut) {
        if let Self::Channel(sender) = self {
            sender.begin_frame(buffer);
        }
    }

    /// Sends a buffer prepared by [`StreamWriter::begin_frame`].
    async fn send_framed(&mut self, buffer: Bytes) -> io::Result<()> {
        match self {
            Self::Channel(sender) => sender.send_framed(buffer).await,
            Self::Spdy(stream) => stream.send(buffer).await,
        }
    }

    /// Sends bytes. An empty slice is an empty message on a WebSocket, and nothing on SPDY.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(bytes.len() + 1);
        self.begin_frame(&mut buffer);
        buffer.extend_from_slice(bytes);
        self.send_framed(buffer.freeze()).await
    }

    /// Signals the end of the data, if the transport can.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Channel(sender) => sender.finish().await,
            Self::Spdy(stream) => stream.finish(),
        }
    }

    /// Waits until everything is written. A WebSocket does that when it closes.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Channel(_) => Ok(()),
            Self::Spdy(stream) => stream.flush().await,
        }
    }

    /// Resets the stream, if the transport can.
    pub(crate) fn reset(self, status: vk_spdy::ResetStatus) {
        if let Self::Spdy(stream) = self {
            stream.reset(status);
        }
    }
}

/// The direction in which bytes are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// From the client to the pod.
    ToPod,
    /// From the pod to the client.
    ToClient,
}

impl Direction {
    pub(crate) fn count(self, activity: &ActivityTracker, bytes: usize) {
        match self {
            Self::ToPod => activity.received(bytes),
            Self::ToClient => activity.sent(bytes),
        }
    }
}

/// The side on which a copy failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// Reading from the source failed.
    Source,
    /// Writing to the destination failed.
    Destination,
}

/// Sends everything that a reader returns. Does not signal the end: see [`StreamWriter::finish`].
pub(crate) async fn copy_to_peer(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut StreamWriter,
    activity: &ActivityTracker,
    direction: Direction,
) -> Result<(), CopyError> {
    let mut size = MIN_BUFFER;
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(size + 1);
        to.begin_frame(&mut buffer);
        let read =
            (&mut *from).take(size as u64).read_buf(&mut buffer).await.map_err(|_| CopyError::Source)?;
        if read == 0 {
            return Ok(());
        }
        to.send_framed(buffer.split().freeze()).await.map_err(|_| CopyError::Destination)?;
        direction.count(activity, read);
        size = if read == size {
            (size * 2).min(MAX_BUFFER)
        } else {
            read.next_power_of_two().clamp(MIN_BUFFER, size)
        };
    }
}

/// Writes everything that comes, and then shuts the writer down.
pub(crate) async fn copy_from_peer(
    from: &mut StreamReader,
    to: &mut (impl AsyncWrite + Unpin),
    activity: &ActivityTracker,
    direction: Direction,
) -> Result<(), CopyError> {
    while let Some(bytes) = from.next_chunk().await.map_err(|_| CopyError::Source)? {
        to.write_all(&bytes).await.map_err(|_| CopyError::Destination)?;
        to.flush().await.map_err(|_| CopyError::Destination)?;
        direction.count(activity, bytes.len());
    }
    to.shutdown().await.map_err(|_| CopyError::Destination)
}

/// Reads and drops everything, so that unwanted data does not block other streams of the connection.
pub(crate) async fn discard(from: &mut StreamReader) {
    while let Ok(Some(_)) = from.next_chunk().await {}
}

/// Sends everything that a reader returns, and then the end.
pub(crate) async fn send_all(mut from: impl AsyncRead + Unpin, mut to: StreamWriter) {
    if copy_to_peer(&mut from, &mut to, &ActivityTracker::new(), Direction::ToPod).await.is_ok() {
        let _ = to.finish().await;
    }
}

/// Writes everything that comes, and drops what the writer does not take.
pub(crate) async fn receive_all(mut from: StreamReader, mut to: impl AsyncWrite + Unpin) {
    if let Err(CopyError::Destination) =
        copy_from_peer(&mut from, &mut to, &ActivityTracker::new(), Direction::ToClient).await
    {
        discard(&mut from).await;
    }
}
