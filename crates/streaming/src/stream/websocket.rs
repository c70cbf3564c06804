//! Channels over a WebSocket: one driver reads and writes the connection, and every channel has a short queue. A full queue stops
//! reading for all channels: the protocol has no other back-pressure.

use std::{io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{
    SinkExt as _, StreamExt as _,
    future::{self, Either},
    stream::{SplitSink, SplitStream},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    time::{Instant, interval_at, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        error::ProtocolError,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{
    ChannelChunk, StreamReader, StreamWriter,
    channel_codec::{ChannelCodec, ChannelMessage, EncodedMessage},
};
use crate::limits::{SessionEnd, SessionLimits};

/// Queued messages, to the connection and to the reader of a channel.
const QUEUE_LENGTH: usize = 4;

/// The configuration of a connection.
pub(crate) fn config(limits: &SessionLimits) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .write_buffer_size(64 << 10)
        .max_message_size(Some(limits.max_message))
        .max_frame_size(Some(limits.max_message))
}

/// A normal close message.
pub(crate) fn close_message() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

/// How the driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketEnd {
    /// Both sides sent a close message.
    Closed,
    /// The connection was lost.
    Lost,
    /// The peer violated the protocol.
    Protocol(String),
}

/// Sends the messages of one channel.
#[derive(Debug)]
pub(crate) struct ChannelSender {
    queue: mpsc::Sender<Message>,
    codec: ChannelCodec,
    channel: u8,
    /// Send a message at the end of the channel. Servers do not: clients would take it for an unknown channel.
    ends: bool,
}

impl ChannelSender {
    pub(super) fn begin_frame(&self, buffer: &mut BytesMut) {
        self.codec.begin_frame(self.channel, buffer);
    }

    pub(super) async fn send_framed(&self, framed: Bytes) -> io::Result<()> {
        let message = match self.codec.encode(self.channel, framed) {
            EncodedMessage::Binary(bytes) => Message::Binary(bytes),
            EncodedMessage::Text(text) => Message::Text(text.into()),
        };
        self.queue.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    pub(super) async fn finish(&self) -> io::Result<()> {
        let Some(end) = self.codec.close_message(self.channel).filter(|_| self.ends) else { return Ok(()) };
        self.queue.send(Message::Binary(end)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A connection in preparation: take channels from it, then drive it.
#[derive(Debug)]
pub(crate) struct WebSocketChannels<IO> {
    socket: WebSocketStream<IO>,
    codec: ChannelCodec,
    role: Role,
    inputs: Vec<Option<mpsc::Sender<ChannelChunk>>>,
    queue: mpsc::Sender<Message>,
    queued: mpsc::Receiver<Message>,
    keepalive: Option<Duration>,
    linger: Duration,
}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> WebSocketChannels<IO> {
    /// Channels 0 to `count` over an upgraded connection.
    pub(crate) async fn new(
        io: IO,
        role: Role,
        codec: ChannelCodec,
        count: usize,
        limits: &SessionLimits,
    ) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE_LENGTH);
        Self {
            socket: WebSocketStream::from_raw_socket(io, role, Some(config(limits))).await,
            codec,
            role,
            inputs: (0..count).map(|_| None).collect(),
            queue,
            queued,
            keepalive: limits.keepalive,
            linger: limits.linger,
        }
    }

    /// The reader of a channel. Channels without one are dropped.
    pub(crate) fn input(&mut self, channel: u8) -> StreamReader {
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
        if let Some(input) = self.inputs.get_mut(usize::from(channel)) {
            *input = Some(sender);
        }
        StreamReader::Channel(receiver)
    }

    /// The writer of a channel.
    pub(crate) fn output(&self, channel: u8) -> StreamWriter {
        let ends = self.role == Role::Client;
        StreamWriter::Channel(ChannelSender { queue: self.queue.clone(), codec: self.codec, channel, ends })
    }

    /// Moves messages until the peer disconnects or, for a server, until all writers are dropped: then it sends what is queued and a
    /// close message, and waits a little for the peer to read it and to close. The rest is [`ClosingSocket::close`], which nobody
    /// else has to wait for.
    pub(crate) async fn drive(self) -> ClosingSocket<IO> {
        let Self { socket, codec, role, mut inputs, queue, queued, keepalive, linger } = self;
        // The server decides when to close: a client without writers keeps reading.
        let _listening = (role == Role::Client).then_some(queue);
        let (mut sink, mut stream) = socket.split();
        let ended = {
            let read = read(&mut stream, codec, role, &mut inputs);
            let write = write(&mut sink, queued, keepalive);
            tokio::pin!(read, write);
            tokio::select! {
                biased;
                ended = &mut read => ended,
                written = &mut write => match written {
                    // Closing a connection with unread input loses the data sent last: keep reading.
                    Ok(()) => timeout(linger, read).await.unwrap_or(SocketEnd::Lost),
                    Err(_) => SocketEnd::Lost,
                },
            }
        };
        if ended == SocketEnd::Closed && role == Role::Client {
            for input in inputs.into_iter().flatten() {
                // Readers must see an end and not a loss.
                let _ = input.send(ChannelChunk::End).await;
            }
        }
        ClosingSocket { ended, sink, stream, linger }
    }
}

/// A connection without traffic, to be closed.
#[derive(Debug)]
pub(crate) struct ClosingSocket<IO> {
    ended: SocketEnd,
    sink: SplitSink<WebSocketStream<IO>, Message>,
    stream: SplitStream<WebSocketStream<IO>>,
    linger: Duration,
}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> ClosingSocket<IO> {
    /// Answers the peer's close message, or reports its protocol error, and closes.
    pub(crate) async fn close(self) -> SocketEnd {
        let Self { ended, mut sink, stream, linger } = self;
        let closing = async {
            let sent = match &ended {
                SocketEnd::Lost => return,
                SocketEnd::Closed => sink.close().await,
                SocketEnd::Protocol(wrong) => sink.send(protocol_error(wrong)).await,
            };
            if let (Ok(()), Ok(socket)) = (sent, sink.reunite(stream)) {
                let _ = socket.into_inner().shutdown().await;
            }
        };
        let _ = timeout(linger, closing).await;
        ended
    }
}

/// Serves until the work is done and the client has everything, or the client disconnects: then the work is dropped at once.
pub(crate) async fn serve_until_closed<IO>(
    work: impl Future<Output = SessionEnd> + Send,
    driver: impl Future<Output = ClosingSocket<IO>> + Send,
    limits: &SessionLimits,
) -> SessionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    match future::select(Box::pin(driver), Box::pin(work)).await {
        Either::Left((rest, work)) => {
            drop(work);
            match rest.close().await {
                SocketEnd::Protocol(wrong) => SessionEnd::Protocol(wrong),
                SocketEnd::Closed | SocketEnd::Lost => SessionEnd::ClientGone,
            }
        }
        Either::Right((end, driver)) => {
            // The writers are dropped, so the driver sends the rest and closes.
            let closing = async { driver.await.close().await };
            let _ = timeout(limits.drain_timeout(&end), closing).await;
            end
        }
    }
}

/// The close message for a protocol error.
fn protocol_error(wrong: &str) -> Message {
    // A control frame holds 125 bytes, including two for the code.
    let reason = wrong.chars().filter(char::is_ascii).take(123).collect::<String>();
    Message::Close(Some(CloseFrame { code: CloseCode::Protocol, reason: reason.into() }))
}

async fn write<IO: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<IO>, Message>,
    mut queued: mpsc::Receiver<Message>,
    keepalive: Option<Duration>,
) -> Result<(), Error> {
    let mut pings = keepalive.map(|period| interval_at(Instant::now() + period, period));
    loop {
        let ping = async {
            match &mut pings {
                Some(pings) => pings.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = queued.recv() => match message {
                Some(message) => sink.feed(message).await?,
                None => return sink.send(close_message()).await,
            },
            _ = ping => sink.feed(Message::Ping(Bytes::new())).await?,
        }
        while let Ok(message) = queued.try_recv() {
            sink.feed(message).await?;
        }
        sink.flush().await?;
    }
}

async fn read<IO: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut SplitStream<WebSocketStream<IO>>,
    codec: ChannelCodec,
    role: Role,
    inputs: &mut [Option<mpsc::Sender<ChannelChunk>>],
) -> SocketEnd {
    loop {
        // Some clients send text messages on binary channels.
        let message = match stream.next().await {
            Some(Ok(Message::Binary(bytes))) => bytes,
            Some(Ok(Message::Text(text))) => text.into(),
            Some(Ok(Message::Close(None))) => return SocketEnd::Closed,
            Some(Ok(Message::Close(Some(close)))) => return closed(&close),
            Some(Ok(_)) => continue,
            Some(Err(Error::Io(_) | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))) | None => {
                return SocketEnd::Lost;
            }
            Some(Err(error)) => return SocketEnd::Protocol(error.to_string()),
        };
        let decoded = match codec.decode(&message) {
            Ok(decoded) => decoded,
            Err(wrong) => return SocketEnd::Protocol(wrong),
        };
        drop(message);
        match decoded {
            ChannelMessage::Empty => {}
            ChannelMessage::Data(channel, bytes) => {
                // Unknown channels are ignored, as in the kubelet.
                let input = inputs.get(usize::from(channel)).and_then(Option::as_ref);
                if let (Some(input), false) = (input, bytes.is_empty()) {
                    let _ = input.send(ChannelChunk::Data(bytes)).await;
                }
            }
            ChannelMessage::End(channel) => match inputs.get_mut(usize::from(channel)) {
                Some(input) => {
                    if let Some(input) = input.take() {
                        let _ = input.send(ChannelChunk::End).await;
                    }
                }
                // Only a server knows all channels.
                None if role == Role::Server => {
                    return SocketEnd::Protocol(format!(
                        "a close message for channel {channel}, which does not exist"
                    ));
                }
                None => {}
            },
        }
    }
}

fn closed(close: &CloseFrame) -> SocketEnd {
    match close.code {
        CloseCode::Normal | CloseCode::Away | CloseCode::Status => SocketEnd::Closed,
        code => SocketEnd::Protocol(format!("closed with code {code}: {}", close.reason)),
    }
}
