//! A session over SPDY streams.

use std::io;

use futures::future::{self, Either};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};
use vk_spdy::{Connection, ResetStatus, Stream};

use super::{
    CommandStatus, ProtocolVersion, Request,
    runner::{ClientStreams, SessionRunner},
};
use crate::{
    limits::{SessionEnd, SessionLimits},
    spdy::{self, ERROR, STREAM_TYPE},
    stream::{self, StreamReader, StreamWriter},
};

pub(super) async fn serve<IO>(io: IO, request: &Request, runner: SessionRunner<'_>) -> SessionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let limits = runner.limits;
    let (connection, driver) = Connection::server(io, spdy::config(limits));
    let work = async {
        let mut streams = OpenedStreams::default();
        let accepting = accept(&mut streams, &connection, request);
        let Ok(accepted) = timeout(limits.creation, accepting).await else {
            drop(runner);
            let reporting = report_missing(streams, request, limits);
            let _ = timeout(limits.linger, reporting).await;
            return SessionEnd::NoStreams;
        };
        let (streams, mut unused) = accepted.split();
        let end = tokio::select! {
            biased;
            end = runner.run(streams) => end,
            end = spdy::reject_streams(&connection).then_never() => end,
            () = spdy::keep_alive(&connection, limits.keepalive) => SessionEnd::ClientGone,
            end = unused.discard().then_never() => end,
        };
        unused.finish().await;
        end
    };
    tokio::pin!(work, driver);
    match future::select(driver, work).await {
        Either::Left((ended, _)) => spdy::session_end(ended),
        Either::Right((end, driver)) => {
            let _ = future::join(connection.close(), driver).await;
            end
        }
    }
}

/// Background work whose end does not end the session.
trait ThenNever: Future + Sized {
    async fn then_never<T>(self) -> T {
        self.await;
        future::pending().await
    }
}

impl<F: Future> ThenNever for F {}

/// The streams that a client has opened.
#[derive(Debug, Default)]
struct OpenedStreams {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

/// Waits for the streams of the request. Waits forever if no more can come: the driver reports the end of the connection.
async fn accept(streams: &mut OpenedStreams, connection: &Connection, request: &Request) -> CompleteStreams {
    loop {
        if let Some(accepted) = streams.take_complete(request) {
            return accepted;
        }
        let Ok(Some(incoming)) = connection.accept().await else { return future::pending().await };
        match streams.by_type(incoming.headers().get(STREAM_TYPE)) {
            Some(slot @ None) => *slot = Some(incoming.accept()),
            // Unknown or duplicate.
            Some(Some(_)) | None => incoming.reject(ResetStatus::ProtocolError),
        }
    }
}

/// Tells a client that streams are missing, if it has opened an error stream.
async fn report_missing(streams: OpenedStreams, request: &Request, limits: &SessionLimits) -> io::Result<()> {
    let Some(mut error) = streams.error else { return Ok(()) };
    let text = format!("the client did not open all its streams within {:?}", limits.creation);
    error.send(CommandStatus::Failure(text).encode(request.protocol.version()).into()).await?;
    error.finish()?;
    error.flush().await
}

impl OpenedStreams {
    fn by_type(&mut self, kind: Option<&str>) -> Option<&mut Option<Stream>> {
        match kind? {
            ERROR => Some(&mut self.error),
            "stdin" => Some(&mut self.stdin),
            "stdout" => Some(&mut self.stdout),
            "stderr" => Some(&mut self.stderr),
            "resize" => Some(&mut self.resize),
            _ => None,
        }
    }

    /// Takes the streams when all are open.
    fn take_complete(&mut self, request: &Request) -> Option<CompleteStreams> {
        let options = request.options;
        let resize = options.tty && request.protocol.version() >= ProtocolVersion::V3;
        let is_present = |required: bool, stream: &Option<Stream>| !required || stream.is_some();
        let all = is_present(options.stdin, &self.stdin)
            && is_present(options.stdout, &self.stdout)
            && is_present(options.stderr, &self.stderr)
            && is_present(resize, &self.resize);
        let error = self.error.take_if(|_| all)?;
        let Self { stdin, stdout, stderr, resize, .. } = std::mem::take(self);
        Some(CompleteStreams { error, stdin, stdout, stderr, resize })
    }
}

/// All streams of the request.
#[derive(Debug)]
struct CompleteStreams {
    error: Stream,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

/// The unused halves of streams. They are kept during the session: dropping both halves resets a stream, which a client may take for
/// a failure. And a client takes the end of stdin's other half as a request to close its own.
#[derive(Debug, Default)]
struct UnusedHalves {
    inputs: Vec<StreamReader>,
    outputs: Vec<StreamWriter>,
}

impl CompleteStreams {
    fn split(self) -> (ClientStreams, UnusedHalves) {
        let mut unused = UnusedHalves::default();
        let stdin = self.stdin.map(|stream| unused.input(stream));
        let resize = self.resize.map(|stream| unused.input(stream));
        let stdout = self.stdout.map(|stream| unused.output(stream));
        let stderr = self.stderr.map(|stream| unused.output(stream));
        let error = unused.output(self.error);
        (ClientStreams { stdin, stdout, stderr, resize, error }, unused)
    }
}

impl UnusedHalves {
    fn input(&mut self, stream: Stream) -> StreamReader {
        let (reader, writer) = stream.split();
        self.outputs.push(StreamWriter::Spdy(writer));
        StreamReader::Spdy(reader)
    }

    fn output(&mut self, stream: Stream) -> StreamWriter {
        let (reader, writer) = stream.split();
        self.inputs.push(StreamReader::Spdy(reader));
        StreamWriter::Spdy(writer)
    }

    /// Reads unexpected data of the client, which would block the whole connection otherwise.
    async fn discard(&mut self) {
        future::join_all(self.inputs.iter_mut().map(stream::discard)).await;
    }

    async fn finish(&mut self) {
        for output in &mut self.outputs {
            let _ = output.finish().await;
        }
    }
}
