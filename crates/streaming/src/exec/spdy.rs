//! A session over SPDY streams.

use std::io;

use futures::future::{self, Either};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};
use vk_spdy::{Connection, ResetStatus, Stream};

use super::{
    Request, Status, Version,
    pump::{Job, Wires},
};
use crate::{
    limits::{End, Limits},
    spdy::{self, ERROR, STREAM_TYPE},
    wire::{self, Input, Output},
};

pub(super) async fn serve<IO>(io: IO, request: &Request, job: Job<'_>) -> End
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let limits = job.limits;
    let (connection, driver) = Connection::server(io, spdy::config(limits));
    let work = async {
        let mut streams = Streams::default();
        let accepting = accept(&mut streams, &connection, request);
        let Ok(accepted) = timeout(limits.creation, accepting).await else {
            drop(job);
            let telling = tell_missing(streams, request, limits);
            let _ = timeout(limits.linger, telling).await;
            return End::NoStreams;
        };
        let (wires, mut halves) = accepted.split();
        let end = tokio::select! {
            biased;
            end = job.run(wires) => end,
            end = spdy::refuse_others(&connection).then_never() => end,
            () = spdy::keep_alive(&connection, limits.keepalive) => End::ClientGone,
            end = halves.discard().then_never() => end,
        };
        halves.finish().await;
        end
    };
    tokio::pin!(work, driver);
    match future::select(driver, work).await {
        Either::Left((ended, _)) => spdy::end(ended),
        Either::Right((end, driver)) => {
            let _ = future::join(connection.close(), driver).await;
            end
        }
    }
}

/// Work beside the session, whose end is not the session's.
trait ThenNever: Future + Sized {
    async fn then_never<T>(self) -> T {
        self.await;
        future::pending().await
    }
}

impl<F: Future> ThenNever for F {}

/// The streams that a client opened.
#[derive(Debug, Default)]
struct Streams {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

/// Waits for the streams that belong to the request; for ever, when no more can come: how the connection ends is said by
/// its driver.
async fn accept(streams: &mut Streams, connection: &Connection, request: &Request) -> Accepted {
    loop {
        if let Some(accepted) = streams.complete(request) {
            return accepted;
        }
        let Ok(Some(incoming)) = connection.accept().await else { return future::pending().await };
        match streams.slot(incoming.headers().get(STREAM_TYPE)) {
            Some(slot @ None) => *slot = Some(incoming.accept()),
            // Unknown, or a second of its kind.
            Some(Some(_)) | None => incoming.refuse(ResetStatus::ProtocolError),
        }
    }
}

/// Tells a client what it has forgotten, if it has opened a stream to be told on.
async fn tell_missing(streams: Streams, request: &Request, limits: &Limits) -> io::Result<()> {
    let Some(mut error) = streams.error else { return Ok(()) };
    let text = format!("the client did not open all its streams within {:?}", limits.creation);
    error.send(Status::Failure(text).encode(request.protocol.version()).into()).await?;
    error.finish()?;
    error.flush().await
}

impl Streams {
    fn slot(&mut self, kind: Option<&str>) -> Option<&mut Option<Stream>> {
        match kind? {
            ERROR => Some(&mut self.error),
            "stdin" => Some(&mut self.stdin),
            "stdout" => Some(&mut self.stdout),
            "stderr" => Some(&mut self.stderr),
            "resize" => Some(&mut self.resize),
            _ => None,
        }
    }

    /// All of them, when none is missing any more.
    fn complete(&mut self, request: &Request) -> Option<Accepted> {
        let options = request.options;
        let resize = options.tty && request.protocol.version() >= Version::V3;
        let there = |wanted: bool, stream: &Option<Stream>| !wanted || stream.is_some();
        let all = there(options.stdin, &self.stdin)
            && there(options.stdout, &self.stdout)
            && there(options.stderr, &self.stderr)
            && there(resize, &self.resize);
        let error = self.error.take_if(|_| all)?;
        let Self { stdin, stdout, stderr, resize, .. } = std::mem::take(self);
        Some(Accepted { error, stdin, stdout, stderr, resize })
    }
}

/// All the streams that were wanted.
#[derive(Debug)]
struct Accepted {
    error: Stream,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

/// The halves of streams that the session does not use. They are kept while it lasts: a stream of which we hold nothing is
/// reset, and a client may take that for a failure. And a client takes the end of the other half of stdin for the wish that
/// it ends its own.
#[derive(Debug, Default)]
struct Halves {
    inputs: Vec<Input>,
    outputs: Vec<Output>,
}

impl Accepted {
    fn split(self) -> (Wires, Halves) {
        let mut halves = Halves::default();
        let stdin = self.stdin.map(|stream| halves.input(stream));
        let resize = self.resize.map(|stream| halves.input(stream));
        let stdout = self.stdout.map(|stream| halves.output(stream));
        let stderr = self.stderr.map(|stream| halves.output(stream));
        let error = halves.output(self.error);
        (Wires { stdin, stdout, stderr, resize, error }, halves)
    }
}

impl Halves {
    fn input(&mut self, stream: Stream) -> Input {
        let (reader, writer) = stream.split();
        self.outputs.push(Output::Spdy(writer));
        Input::Spdy(reader)
    }

    fn output(&mut self, stream: Stream) -> Output {
        let (reader, writer) = stream.split();
        self.inputs.push(Input::Spdy(reader));
        Output::Spdy(writer)
    }

    /// What a client sends where nothing is expected holds up the whole connection, unless somebody reads it.
    async fn discard(&mut self) {
        future::join_all(self.inputs.iter_mut().map(wire::discard)).await;
    }

    async fn finish(&mut self) {
        for output in &mut self.outputs {
            let _ = output.finish().await;
        }
    }
}
