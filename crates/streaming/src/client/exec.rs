//! A process that another server runs, as a session.

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
    handshake::{self, Offer},
    task::{Task, With},
};
use crate::{
    exec::{Protocol, Status, Version, number, size_message},
    limits::Limits,
    spdy::{self, STREAM_TYPE},
    wire::{self, Input, Output, websocket::Channels},
};

/// What waits in a stream of the session.
const BUFFER: usize = 64 << 10;
/// The longest status.
const LONGEST_STATUS: usize = 1 << 20;

/// The server's side of a session, and what must run for it to move.
struct Wires {
    stdin: Option<Output>,
    stdout: Option<Input>,
    stderr: Option<Input>,
    resize: Option<Output>,
    error: Input,
    driver: BoxFuture<'static, ()>,
}

/// [`exec`](super::exec()) over a connection that stands already, in the first of these protocols that the server knows. They must be
/// all SPDY or all WebSocket: one handshake asks for one of the two. The request has the method (`GET` for WebSocket), the
/// address with its query, `Host`, and what else the server wants to see; the headers of the upgrade are put in here.
pub async fn exec_over<IO>(
    io: IO,
    request: Request<()>,
    protocols: &[Protocol],
    options: &ExecOptions,
    limits: &Limits,
) -> Result<Session>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let offers: Vec<_> = protocols.iter().filter_map(|protocol| protocol.name()).collect();
    let is_spdy = |protocol: &Protocol| matches!(protocol, Protocol::Spdy(_));
    if offers.len() != protocols.len() || protocols.iter().any(is_spdy) != protocols.iter().all(is_spdy) {
        return Err(Error::invalid(format!(
            "offer the protocols {protocols:?}: they must exist, and be all SPDY or all WebSocket"
        )));
    }
    let offer = if protocols.iter().all(is_spdy) && !protocols.is_empty() {
        Offer::spdy(&offers)
    } else {
        Offer::websocket(&offers)
    };
    let (taken, io) = handshake::agree(io, request, &offer, limits).await?;
    let protocol = match protocols.iter().find(|protocol| protocol.name() == Some(&taken)) {
        Some(protocol) => *protocol,
        None if taken.is_empty() && offers.is_empty() => Protocol::WebSocket(Version::V1),
        None => {
            let message =
                format!("choose a streaming protocol: we offered {offers:?}, and the server took {taken:?}");
            return Err(Error::internal(message));
        }
    };
    exec_upgraded(io, protocol, options, limits).await
}

/// [`exec`](super::exec()) over a connection that speaks this protocol already.
pub async fn exec_upgraded<IO>(
    io: IO,
    protocol: Protocol,
    options: &ExecOptions,
    limits: &Limits,
) -> Result<Session>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let options = ExecOptions { stderr: options.stderr && !options.tty, ..*options };
    let wires = match protocol {
        Protocol::Spdy(version) => open_streams(io, version, options, limits).await?,
        _ => open_channels(io, protocol, options, limits).await,
    };
    Ok(session(wires, protocol.version()))
}

async fn open_channels<IO>(io: IO, protocol: Protocol, options: ExecOptions, limits: &Limits) -> Wires
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut channels = Channels::new(io, Role::Client, protocol.codec(), number::COUNT, limits).await;
    Wires {
        stdin: options.stdin.then(|| channels.output(number::STDIN)),
        stdout: options.stdout.then(|| channels.input(number::STDOUT)),
        stderr: options.stderr.then(|| channels.input(number::STDERR)),
        resize: options.tty.then(|| channels.output(number::RESIZE)),
        error: channels.input(number::ERROR),
        driver: async { drop(channels.drive().await.close().await) }.boxed(),
    }
}

async fn open_streams<IO>(io: IO, version: Version, options: ExecOptions, limits: &Limits) -> Result<Wires>
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (connection, driver) = Connection::client(io, spdy::config(limits));
    let mut driver = driver.map(drop).boxed();
    let resize = options.tty && version >= Version::V3;
    let opening = async {
        let open = async |kind, wanted: bool| -> Result<_, vk_spdy::Error> {
            if !wanted {
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
            // All may have been said already, and wait to be read.
            let opened = opening.now_or_never();
            driver = future::ready(()).boxed();
            opened.ok_or_else(|| failed().caused_by("the server went away"))?
        }
    };
    let (error, stdin, stdout, stderr, resize) =
        opened.map_err(|elapsed| failed().caused_by(elapsed))?.map_err(|error| failed().caused_by(error))?;
    let Some((error, error_unused)) = error else { return Err(failed()) };

    // The halves that are not used live as long as the connection: without them the streams would be reset.
    let mut unused = (vec![error_unused], Vec::new());
    let mut output = |streams: Option<(_, _)>| {
        streams.map(|(reader, writer)| {
            unused.1.push(Input::Spdy(reader));
            Output::Spdy(writer)
        })
    };
    let (stdin, resize) = (output(stdin), output(resize));
    let mut input = |streams: Option<(_, _)>| {
        streams.map(|(reader, writer)| {
            unused.0.push(writer);
            Input::Spdy(reader)
        })
    };
    let (stdout, stderr) = (input(stdout), input(stderr));
    let keepalive = limits.keepalive;
    let driver = async move {
        let (_writers, mut readers) = unused;
        let discarding = future::join_all(readers.iter_mut().map(wire::discard));
        let beside = future::join3(
            discarding,
            spdy::refuse_others(&connection),
            spdy::keep_alive(&connection, keepalive),
        );
        future::select(driver, Box::pin(beside)).await;
    };
    Ok(Wires { stdin, stdout, stderr, resize, error: Input::Spdy(error), driver: driver.boxed() })
}

fn session(wires: Wires, version: Version) -> Session {
    let Wires { stdin, stdout, stderr, resize, error, driver } = wires;
    let (stdin, to_server) = stdin.map(|output| piped(output, duplex(BUFFER))).unzip();
    let (stdout, from_stdout) = stdout.map(|input| piped(input, duplex(BUFFER))).unzip();
    let (stderr, from_stderr) = stderr.map(|input| piped(input, duplex(BUFFER))).unzip();
    let (resize, to_terminal) = resize.map(|output| piped(output, mpsc::channel(1))).unzip();
    let (exited, exit) = oneshot::channel();

    let task = Task::start(async move {
        let status = read_status(error, version, exited);
        let moving = future::join5(
            feed(to_server),
            drain(from_stdout),
            drain(from_stderr),
            tell_sizes(to_terminal),
            status,
        );
        future::join(driver, moving).await;
    });
    let ended = task.clone();
    Session {
        stdin: stdin.map(|stream| Box::new(With { stream, _task: task.clone() }) as _),
        stdout: stdout.map(|stream| Box::new(With { stream, _task: task.clone() }) as _),
        stderr: stderr.map(|stream| Box::new(With { stream, _task: task.clone() }) as _),
        resize,
        exit: async move {
            let _ended = ended;
            exit.await.unwrap_or_else(|_| Err(lost()))
        }
        .boxed(),
    }
}

/// The session's end of a pipe, and the other one with the wire that it leads to.
fn piped<A, B, W>(wire: W, (ours, theirs): (A, B)) -> (A, (B, W)) {
    (ours, (theirs, wire))
}

fn lost() -> Error {
    Error::unavailable("wait for the end of the process: the connection to the streaming server was lost")
}

async fn read_status(mut error: Input, version: Version, exited: oneshot::Sender<Result<Exit>>) {
    let exit = match error.all(LONGEST_STATUS).await {
        (said, Ok(())) => Status::decode(&said, version),
        // What was said counts, whatever came after it.
        (said, Err(_)) if !said.is_empty() => Status::decode(&said, version),
        // Before version 4 a success is not said.
        (_, Err(error)) if version < Version::V4 && error.kind() == io::ErrorKind::ConnectionReset => {
            Ok(Exit { code: 0 })
        }
        (_, Err(error)) => Err(lost().caused_by(error)),
    };
    let _ = exited.send(exit);
}

async fn feed(stdin: Option<(DuplexStream, Output)>) {
    if let Some((from, to)) = stdin {
        wire::send_all(from, to).await;
    }
}

async fn drain(stream: Option<(DuplexStream, Input)>) {
    if let Some((to, from)) = stream {
        wire::receive_all(from, to).await;
    }
}

async fn tell_sizes(resize: Option<(mpsc::Receiver<TermSize>, Output)>) {
    let Some((mut sizes, mut to)) = resize else { return };
    while let Some(size) = sizes.recv().await {
        if to.send(&size_message(size)).await.is_err() {
            return;
        }
    }
}
