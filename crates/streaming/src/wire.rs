//! The streams of a connection, whatever carries them: an [`Input`] gives what the other side sent, an [`Output`] takes
//! what it shall get.

pub(crate) mod channel;
pub(crate) mod tunnel;
pub(crate) mod websocket;

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::meter::Meter;

/// Reads begin with a buffer of this size, so that the many sessions in which little happens cost little.
const SMALL: usize = 4 << 10;
/// A stream that fills its buffers gets larger ones, up to this.
const LARGE: usize = 64 << 10;

/// What comes on a channel of a WebSocket.
#[derive(Debug)]
pub(crate) enum Chunk {
    Data(Bytes),
    End,
}

/// Bytes from the other side.
#[derive(Debug)]
pub(crate) enum Input {
    /// A channel of a WebSocket. It ends by [`Chunk::End`]; a queue that closes without one is a connection that was lost.
    Channel(mpsc::Receiver<Chunk>),
    /// A SPDY stream.
    Spdy(vk_spdy::Reader),
}

/// Bytes to the other side.
#[derive(Debug)]
pub(crate) enum Output {
    /// A channel of a WebSocket.
    Channel(websocket::Sender),
    /// A SPDY stream.
    Spdy(vk_spdy::Writer),
}

impl Input {
    /// The next bytes; `None` at the end. A lost connection is an error and not an end.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Self::Channel(queue) => match queue.recv().await {
                Some(Chunk::Data(bytes)) => Ok(Some(bytes)),
                Some(Chunk::End) => {
                    queue.close();
                    Ok(None)
                }
                None => Err(io::ErrorKind::ConnectionAborted.into()),
            },
            Self::Spdy(stream) => stream.chunk().await,
        }
    }

    /// All that comes until the end, but no more than `limit` bytes of it: the rest is read and thrown away. And what the
    /// end was: servers in Go end their connections by resetting the streams, with all that was to be said already said.
    pub(crate) async fn all(&mut self, limit: usize) -> (Vec<u8>, io::Result<()>) {
        let mut all = Vec::new();
        loop {
            match self.next().await {
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

impl Output {
    /// Makes a buffer ready to be filled and sent: what goes before the payload on this carrier is put in.
    fn begin(&self, buffer: &mut BytesMut) {
        if let Self::Channel(sender) = self {
            sender.begin(buffer);
        }
    }

    /// Sends a buffer that [`Output::begin`] made ready.
    async fn send_begun(&mut self, buffer: Bytes) -> io::Result<()> {
        match self {
            Self::Channel(sender) => sender.send_begun(buffer).await,
            Self::Spdy(stream) => stream.send(buffer).await,
        }
    }

    /// Sends bytes; an empty slice is sent on a WebSocket, where it is a message, and nothing elsewhere.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(bytes.len() + 1);
        self.begin(&mut buffer);
        buffer.extend_from_slice(bytes);
        self.send_begun(buffer.freeze()).await
    }

    /// The end of what we send, where the carrier can say it.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Channel(sender) => sender.finish().await,
            Self::Spdy(stream) => stream.finish(),
        }
    }

    /// Waits until all that was sent is out of our hands. A WebSocket does that when it closes.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Channel(_) => Ok(()),
            Self::Spdy(stream) => stream.flush().await,
        }
    }

    /// Gives the stream up, where the carrier can say it.
    pub(crate) fn reset(self, status: vk_spdy::ResetStatus) {
        if let Self::Spdy(stream) = self {
            stream.reset(status);
        }
    }
}

/// Which way bytes are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// From the client to the pod.
    ToPod,
    /// From the pod to the client.
    ToClient,
}

impl Way {
    pub(crate) fn count(self, meter: &Meter, bytes: usize) {
        match self {
            Self::ToPod => meter.received(bytes),
            Self::ToClient => meter.sent(bytes),
        }
    }
}

/// Which side a copy failed on.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Reading from the source failed.
    Source,
    /// Writing to the destination failed.
    Destination,
}

/// Sends what a reader gives, to its end. The end itself is not said: see [`Output::finish`].
pub(crate) async fn outward(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut Output,
    meter: &Meter,
    way: Way,
) -> Result<(), Broken> {
    let mut size = SMALL;
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(size + 1);
        to.begin(&mut buffer);
        let read = (&mut *from).take(size as u64).read_buf(&mut buffer).await.map_err(|_| Broken::Source)?;
        if read == 0 {
            return Ok(());
        }
        to.send_begun(buffer.split().freeze()).await.map_err(|_| Broken::Destination)?;
        way.count(meter, read);
        size = if read == size { (size * 2).min(LARGE) } else { read.next_power_of_two().clamp(SMALL, size) };
    }
}

/// Writes what comes, to its end, and then shuts the writer down.
pub(crate) async fn inward(
    from: &mut Input,
    to: &mut (impl AsyncWrite + Unpin),
    meter: &Meter,
    way: Way,
) -> Result<(), Broken> {
    while let Some(bytes) = from.next().await.map_err(|_| Broken::Source)? {
        to.write_all(&bytes).await.map_err(|_| Broken::Destination)?;
        to.flush().await.map_err(|_| Broken::Destination)?;
        way.count(meter, bytes.len());
    }
    to.shutdown().await.map_err(|_| Broken::Destination)
}

/// Reads to the end and keeps nothing, so that what nobody wants holds up nobody else on the connection.
pub(crate) async fn discard(from: &mut Input) {
    while let Ok(Some(_)) = from.next().await {}
}

/// Sends what a reader gives, and then the end.
pub(crate) async fn send_all(mut from: impl AsyncRead + Unpin, mut to: Output) {
    if outward(&mut from, &mut to, &Meter::new(), Way::ToPod).await.is_ok() {
        let _ = to.finish().await;
    }
}

/// Writes what comes, and throws away what the writer does not want.
pub(crate) async fn receive_all(mut from: Input, mut to: impl AsyncWrite + Unpin) {
    if let Err(Broken::Destination) = inward(&mut from, &mut to, &Meter::new(), Way::ToClient).await {
        discard(&mut from).await;
    }
}
