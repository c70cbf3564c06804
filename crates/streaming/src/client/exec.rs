//! Exec on another server, as a session.

use std::io;

use futures::{
    FutureExt as _,
    future::{self, BoxFuture, Either},
};
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, duplex},
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_tungstenite::tungstenite::protocol::Role;
use vk_provider::{
    Error, Result,
    ability::{ExecOptions, Exit, Session, TermSize},
};
use vk_spdy::{Connection, Headers};

use super::{
    handshake::{self, ProtocolOffer},
    task::{BackgroundTask, TaskStream},
};
use crate::{
    exec::{CommandStatus, Protocol, ProtocolVersion, number, size_message},
    limits::SessionLimits,
    spdy::{self, STREAM_TYPE},
    stream::{self, StreamReader, StreamWriter, websocket::WebSocketChannels},
};

/// Buffer of a stream of the session.
const BUFFER: usize = 64 << 10;
/// Limit of the status.
const MAX_STATUS: usize = 1 << 20;

/// The server's side of a session, and the future that drives it.
struct RemoteStreams {
    stdin: Option<StreamWriter>,
    stdout: Option<StreamReader>,
    stderr: Option<StreamReader>,
    resize: Option<StreamWriter>,
    error: StreamReader,
    driver: BoxFuture<'static, ()>,
}

/// [`exec`](super::exec()) over an existing connection, with the first of these protocols that the server supports. They must be all
/// SPDY or all WebSocket: a handshake asks for one of the two. The request has the method (`GET` for WebSocket), the path with its
/// query, `Host`, and other headers that the server needs; the upgrade headers are added here.
pub async fn exec_over<IO>(
    io: IO,
    request: Request<()>,
    protocols: &[Protocol],
    options: &ExecOptions,
    limits: &SessionLimits,
) -> Result<Session>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let offers: Vec<_> = protocols.iter().filter_map(|protocol| protocol.name()).collect();
    let is_spdy = |protocol: &Protocol| matches!(protocol, Protocol::Spdy(_));
    if offers.len() != protocols.len() || protocols.iter().any(is_spdy) != protocols.iter().all(is_spdy) {
        return Err(Error::invalid(format!(
            "offer the protocols {protocols:?}: they must exist and be all SPDY or all WebSocket"
        )));
    }
    let offer = if protocols.iter().all(is_spdy) && !protocols.is_empty() {
        ProtocolOffer::spdy(&offers)
    } else {
        ProtocolOffer::websocket(&offers)
    };
    let (selected, io) = handshake::negotiate(io, request, &offer, limits).await?;
    let protocol = match protocols.iter().find(|protocol| protocol.name() == Some(&selected)) {
        Some(protocol) => *protocol,
        None if selected.is_empty() && offers.is_empty() => Protocol::WebSocket(ProtocolVersion::V1),
        None => {
            let message = format!(
                "choose a streaming protocol: we offered {offers:?}, and the server selected {selected:?}"
            );
            return Err(Error::internal(message));
        }
    };
    exec_upgraded(io, protocol, options, limits).await
}

/// [`exec`](super::exec()) over a connection that was upgraded to this protocol.
pub async fn exec_upgraded<IO>(
    io: IO,
    protocol: Protocol,
    options: &ExecOptions,
    limits: &SessionLimits,
) -> Result<Session>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let options = ExecOptions { stderr: options.stderr && !options.tty, ..*options };
    let streams = match protocol {
        Protocol::Spdy(version) => open_streams(io, version, options, limits).await?,
        _ => open_channels(io, protocol, options, limits).await,
    };
    Ok(session(streams, protocol.version()))
}

async fn open_channels<IO>(
    io: IO,
    protocol: Protocol,
    options: ExecOptions,
    limits: &SessionLimits,
) -> RemoteStreams
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut channels =
        WebSocketChannels::new(io, Role::Client, protocol.codec(), number::COUNT, limits).await;
    RemoteStreams {
        stdin: options.stdin.then(|| channels.output(number::STDIN)),
        stdout: options.stdout.then(|| channels.input(number::STDOUT)),
        stderr: options.stderr.then(|| channels.input(number::STDERR)),
        resize: options.tty.then(|| channels.output(number::RESIZE)),
        error: channels.input(number::ERROR),
        driver: async { drop(channels.drive().await.close().await) }.boxed(),
    }
}

async fn open_streams<IO>(
    io: IO,
    version: ProtocolVersion,
    options: ExecOptions,
    limits: &SessionLimits,
) -> Result<RemoteStreams>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (connection, driver) = Connection::client(io, spdy::config(limits));
    let mut driver = driver.map(drop).boxed();
    let resize = options.tty && version >= ProtocolVersion::V3;
    let opening = async {
        let open = async |kind, required: bool| -> Result<_, vk_spdy::Error> {
            if !required {
                return Ok(None);
            }
            let stream = connection.open(&Headers::new().with(STREAM_TYPE, kind)).await?;
            Ok(Some(stream.split()))
        };
        let error = open("error", true).await?;
        let stdin = open("stdin", options.stdin).await?;
        let stdout = open("stdout", options.stdout).await?;
        let stderr = open("stderr", options.stderr).await?;
        let resize = open("resize", resize).await?;
        Ok::<_, vk_spdy::Error>((error, stdin, stdout, stderr, resize))
    };
    let failed = || Error::unavailable("open the streams of a session");
    let opened = match future::select(Box::pin(timeout(limits.creation, opening)), &mut driver).await {
        Either::Left((opened, _)) => opened,
        Either::Right(((), opening)) => {
            // Everything may have been received already.
            let opened = opening.now_or_never();
            driver = future::ready(()).boxed();
            opened.ok_or_else(|| failed().caused_by("the server went away"))?
        }
    };
    let (error, stdin, stdout, stderr, resize) =
        opened.map_err(|elapsed| failed().caused_by(elapsed))?.map_err(|error| failed().caused_by(error))?;
    let Some((error, error_unused)) = error else { return Err(failed()) };

    // Unused halves are kept as long as the connection: without them the streams would be reset.
    let mut unused = (vec![error_unused], Vec::new());
    let mut output = |streams: Option<(_, _)>| {
        streams.map(|(reader, writer)| {
            unused.1.push(StreamReader::Spdy(reader));
            StreamWriter::Spdy(writer)
        })
    };
    let (stdin, resize) = (output(stdin), output(resize));
    let mut input = |streams: Option<(_, _)>| {
        streams.map(|(reader, writer)| {
            unused.0.push(writer);
            StreamReader::Spdy(reader)
        })
    };
    let (stdout, stderr) = (input(stdout), input(stderr));
    let keepalive = limits.keepalive;
    let driver = async move {
        let (_writers, mut readers) = unused;
        let discarding = future::join_all(readers.iter_mut().map(stream::discard));
        let background = future::join3(
            discarding,
            spdy::reject_streams(&connection),
            spdy::keep_alive(&connection, keepalive),
        );
        future::select(driver, Box::pin(background)).await;
    };
    Ok(RemoteStreams {
        stdin,
        stdout,
        stderr,
        resize,
        error: StreamReader::Spdy(error),
        driver: driver.boxed(),
    })
}

fn session(streams: RemoteStreams, version: ProtocolVersion) -> Session {
    let RemoteStreams { stdin, stdout, stderr, resize, error, driver } = streams;
    let (stdin, to_server) = stdin.map(|output| attach_pipe(output, duplex(BUFFER))).unzip();
    let (stdout, from_stdout) = stdout.map(|input| attach_pipe(input, duplex(BUFFER))).unzip();
    let (stderr, from_stderr) = stderr.map(|input| attach_pipe(input, duplex(BUFFER))).unzip();
    let (resize, to_terminal) = resize.map(|output| attach_pipe(output, mpsc::channel(1))).unzip();
    let (exit_sender, exit) = oneshot::channel();

    let task = BackgroundTask::start(async move {
        let status = read_status(error, version, exit_sender);
        let moving = future::join5(
            send_input(to_server),
            receive_output(from_stdout),
            receive_output(from_stderr),
            send_sizes(to_terminal),
            status,
        );
        future::join(driver, moving).await;
    });
    let ended = task.clone();
    Session {
        stdin: stdin.map(|stream| Box::new(TaskStream { stream, _task: task.clone() }) as _),
        stdout: stdout.map(|stream| Box::new(TaskStream { stream, _task: task.clone() }) as _),
        stderr: stderr.map(|stream| Box::new(TaskStream { stream, _task: task.clone() }) as _),
        resize,
        exit: async move {
            let _ended = ended;
            exit.await.unwrap_or_else(|_| Err(connection_lost()))
        }
        .boxed(),
    }
}

/// The session's end of a pipe, and the other end with its stream.
fn attach_pipe<A, B, W>(wire: W, (ours, theirs): (A, B)) -> (A, (B, W)) {
    (ours, (theirs, wire))
}

fn connection_lost() -> Error {
    Error::unavailable("wait for the end of the process: the connection to the streaming server was lost")
}

async fn read_status(
    mut error: StreamReader,
    version: ProtocolVersion,
    exit_sender: oneshot::Sender<Result<Exit>>,
) {
    let exit = match error.read_all(MAX_STATUS).await {
        (text, Ok(())) => CommandStatus::decode(&text, version),
        // The status counts, whatever came after it.
        (text, Err(_)) if !text.is_empty() => CommandStatus::decode(&text, version),
        // Before version 4 success is silent.
        (_, Err(error))
            if version < ProtocolVersion::V4 && error.kind() == io::ErrorKind::ConnectionReset =>
        {
            Ok(Exit { code: 0 })
        }
        (_, Err(error)) => Err(connection_lost().caused_by(error)),
    };
    let _ = exit_sender.send(exit);
}

async fn send_input(stdin: Option<(DuplexStream, StreamWriter)>) {
    if let Some((from, to)) = stdin {
        stream::send_all(from, to).await;
    }
}

async fn receive_output(stream: Option<(DuplexStream, StreamReader)>) {
    if let Some((to, from)) = stream {
        stream::receive_all(from, to).await;
    }
}

async fn send_sizes(resize: Option<(mpsc::Receiver<TermSize>, StreamWriter)>) {
    let Some((mut sizes, mut to)) = resize else { return };
    while let Some(size) = sizes.recv().await {
        if to.send(&size_message(size)).await.is_err() {
            return;
        }
    }
}
