//! A WebSocket that carries channels: one driver reads and writes the connection, and every channel has a short queue.
//! A queue that is full stops the reading, for all channels: there is no other back-pressure in this protocol.

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
    Chunk, Input, Output,
    channel::{Codec, Encoded, Said},
};
use crate::limits::{End, Limits};

/// Messages that wait for the connection, and for the reader of a channel.
const QUEUE: usize = 4;

/// The settings of a connection.
pub(crate) fn config(limits: &Limits) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .write_buffer_size(64 << 10)
        .max_message_size(Some(limits.max_message))
        .max_frame_size(Some(limits.max_message))
}

/// A normal end.
pub(crate) fn good_bye() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

/// How the driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both sides said good-bye.
    Closed,
    /// The connection was lost.
    Lost,
    /// The other side broke the protocol.
    Protocol(String),
}

/// Takes the messages of one channel.
#[derive(Debug)]
pub(crate) struct Sender {
    queue: mpsc::Sender<Message>,
    codec: Codec,
    channel: u8,
    /// Whether the end of the channel is said. Servers do not: clients take it for a channel that they do not know.
    ends: bool,
}

impl Sender {
    pub(super) fn begin(&self, buffer: &mut BytesMut) {
        self.codec.begin(self.channel, buffer);
    }

    pub(super) async fn send_begun(&self, begun: Bytes) -> io::Result<()> {
        let message = match self.codec.encode(self.channel, begun) {
            Encoded::Binary(bytes) => Message::Binary(bytes),
            Encoded::Text(text) => Message::Text(text.into()),
        };
        self.queue.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    pub(super) async fn finish(&self) -> io::Result<()> {
        let Some(end) = self.codec.end(self.channel).filter(|_| self.ends) else { return Ok(()) };
        self.queue.send(Message::Binary(end)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A connection that is being made: channels are taken from it, then it is driven.
#[derive(Debug)]
pub(crate) struct Channels<IO> {
    socket: WebSocketStream<IO>,
    codec: Codec,
    role: Role,
    inputs: Vec<Option<mpsc::Sender<Chunk>>>,
    queue: mpsc::Sender<Message>,
    queued: mpsc::Receiver<Message>,
    keepalive: Option<Duration>,
    linger: Duration,
}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Channels<IO> {
    /// Channels 0 up to `count` over a connection that was upgraded.
    pub(crate) async fn new(io: IO, role: Role, codec: Codec, count: usize, limits: &Limits) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
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

    /// What comes on this channel; without this, it is thrown away.
    pub(crate) fn input(&mut self, channel: u8) -> Input {
        let (sender, receiver) = mpsc::channel(QUEUE);
        if let Some(input) = self.inputs.get_mut(usize::from(channel)) {
            *input = Some(sender);
        }
        Input::Channel(receiver)
    }

    /// What goes on this channel.
    pub(crate) fn output(&self, channel: u8) -> Output {
        let ends = self.role == Role::Client;
        Output::Channel(Sender { queue: self.queue.clone(), codec: self.codec, channel, ends })
    }

    /// Moves messages until the other side goes, or, for a server, until all outputs are gone: then it says good-bye, when
    /// all that was sent is out, and waits a little for the other side to read it and to close. What is left to do then is
    /// [`Rest::close`], for which nobody else has to wait.
    pub(crate) async fn drive(self) -> Rest<IO> {
        let Self { socket, codec, role, mut inputs, queue, queued, keepalive, linger } = self;
        // The server decides when it is over: a client that has nothing more to say goes on listening.
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
                    // A connection that is closed with unread input loses what was sent last: so go on reading.
                    Ok(()) => timeout(linger, read).await.unwrap_or(Ended::Lost),
                    Err(_) => Ended::Lost,
                },
            }
        };
        if ended == Ended::Closed && role == Role::Client {
            for input in inputs.into_iter().flatten() {
                // Whoever reads it shall see an end and not a loss.
                let _ = input.send(Chunk::End).await;
            }
        }
        Rest { ended, sink, stream, linger }
    }
}

/// A connection on which nothing moves any more.
#[derive(Debug)]
pub(crate) struct Rest<IO> {
    ended: Ended,
    sink: SplitSink<WebSocketStream<IO>, Message>,
    stream: SplitStream<WebSocketStream<IO>>,
    linger: Duration,
}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Rest<IO> {
    /// Answers the other side's good-bye, or says what it did wrong, and closes.
    pub(crate) async fn close(self) -> Ended {
        let Self { ended, mut sink, stream, linger } = self;
        let farewell = async {
            let said = match &ended {
                Ended::Lost => return,
                Ended::Closed => sink.close().await,
                Ended::Protocol(wrong) => sink.send(protocol_error(wrong)).await,
            };
            if let (Ok(()), Ok(socket)) = (said, sink.reunite(stream)) {
                let _ = socket.into_inner().shutdown().await;
            }
        };
        let _ = timeout(linger, farewell).await;
        ended
    }
}

/// Serves until the work is done and the client has it all, or the client goes: then the work is dropped at once.
pub(crate) async fn end_of<IO>(
    work: impl Future<Output = End> + Send,
    driver: impl Future<Output = Rest<IO>> + Send,
    limits: &Limits,
) -> End
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    match future::select(Box::pin(driver), Box::pin(work)).await {
        Either::Left((rest, work)) => {
            drop(work);
            match rest.close().await {
                Ended::Protocol(wrong) => End::Protocol(wrong),
                Ended::Closed | Ended::Lost => End::ClientGone,
            }
        }
        Either::Right((end, driver)) => {
            // The outputs are gone, so the driver sends the rest, says good-bye and ends.
            let closing = async { driver.await.close().await };
            let _ = timeout(limits.patience(&end), closing).await;
            end
        }
    }
}

/// The end of a connection on which the other side broke the protocol.
fn protocol_error(wrong: &str) -> Message {
    // A control frame holds 125 bytes, two of which are the code.
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
                None => return sink.send(good_bye()).await,
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
    codec: Codec,
    role: Role,
    inputs: &mut [Option<mpsc::Sender<Chunk>>],
) -> Ended {
    loop {
        // Some clients send text on binary channels.
        let message = match stream.next().await {
            Some(Ok(Message::Binary(bytes))) => bytes,
            Some(Ok(Message::Text(text))) => text.into(),
            Some(Ok(Message::Close(None))) => return Ended::Closed,
            Some(Ok(Message::Close(Some(close)))) => return closed(&close),
            Some(Ok(_)) => continue,
            Some(Err(Error::Io(_) | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake))) | None => {
                return Ended::Lost;
            }
            Some(Err(error)) => return Ended::Protocol(error.to_string()),
        };
        let said = match codec.decode(&message) {
            Ok(said) => said,
            Err(wrong) => return Ended::Protocol(wrong),
        };
        drop(message);
        match said {
            Said::Nothing => {}
            Said::Data(channel, bytes) => {
                // Channels that nobody asked for are passed over, as by a kubelet.
                let input = inputs.get(usize::from(channel)).and_then(Option::as_ref);
                if let (Some(input), false) = (input, bytes.is_empty()) {
                    let _ = input.send(Chunk::Data(bytes)).await;
                }
            }
            Said::End(channel) => match inputs.get_mut(usize::from(channel)) {
                Some(input) => {
                    if let Some(input) = input.take() {
                        let _ = input.send(Chunk::End).await;
                    }
                }
                // Only a server has a list of all channels.
                None if role == Role::Server => {
                    return Ended::Protocol(format!(
                        "a close message for channel {channel}, which does not exist"
                    ));
                }
                None => {}
            },
        }
    }
}

fn closed(close: &CloseFrame) -> Ended {
    match close.code {
        CloseCode::Normal | CloseCode::Away | CloseCode::Status => Ended::Closed,
        code => Ended::Protocol(format!("closed with code {code}: {}", close.reason)),
    }
}
