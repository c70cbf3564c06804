//! Port-forward over SPDY: an error stream and a data stream make a connection.

use std::{collections::HashMap, future::Future};

use futures::future::{self, Either};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use vk_spdy::{Connection, Incoming, ResetStatus, Stream};

use super::{Shared, port, relay::Pair};
use crate::{
    limits::End,
    spdy::{self, DATA, ERROR, PORT, REQUEST_ID, STREAM_TYPE},
    wire::{Input, Output},
};

pub(super) async fn serve<IO>(io: IO, shared: &Shared) -> End
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    let limits = &shared.limits;
    let (connection, driver) = Connection::server(io, spdy::config(limits));
    let work = async {
        tokio::select! {
            end = Pairs::new(shared).serve(&connection) => end,
            () = spdy::keep_alive(&connection, limits.keepalive) => End::ClientGone,
            () = shared.meter.idle(limits.idle()) => End::Idle,
        }
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

/// Streams that wait for their partners, and connections that have both.
struct Pairs<'a> {
    shared: &'a Shared,
    waiting: HashMap<String, Half>,
    connections: JoinSet<()>,
}

/// One stream of a pair.
#[derive(Debug)]
struct Half {
    stream: Stream,
    kind: Kind,
    port: u16,
    due: Instant,
}

/// Which stream of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Error,
}

impl<'a> Pairs<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, waiting: HashMap::new(), connections: JoinSet::new() }
    }

    /// Takes streams as they come, for ever.
    async fn serve(mut self, connection: &Connection) -> End {
        let mut open = true;
        loop {
            let overdue = self.overdue();
            tokio::select! {
                incoming = connection.accept(), if open => match incoming {
                    Ok(Some(incoming)) => self.take(incoming),
                    // No more streams: those that are there go on until the connection ends.
                    _ => open = false,
                },
                Some(_) = self.connections.join_next() => {}
                () = overdue => self.expire(),
            }
        }
    }

    fn take(&mut self, incoming: Incoming) {
        let (id, kind, port) = match read(&incoming) {
            Ok(read) => read,
            Err(wrong) => {
                tracing::debug!(%wrong, "port-forward stream refused");
                return incoming.refuse(ResetStatus::RefusedStream);
            }
        };
        match self.waiting.remove(&id) {
            None => {
                let due = Instant::now() + self.shared.limits.creation;
                let half = Half { stream: incoming.accept(), kind, port, due };
                self.waiting.insert(id, half);
            }
            Some(first) if first.kind == kind => {
                incoming.refuse(ResetStatus::ProtocolError);
                let name = if kind == Kind::Data { DATA } else { ERROR };
                self.fail(
                    first,
                    format!("error processing stream for request {id}: {name} stream already assigned"),
                );
            }
            Some(first) => {
                let second = Half { stream: incoming.accept(), kind, port, due: first.due };
                let (data, error) = if kind == Kind::Data { (second, first) } else { (first, second) };
                self.connect(data, error.stream);
            }
        }
    }

    fn connect(&mut self, data: Half, error: Stream) {
        let shared = self.shared.clone();
        let (reader, writer) = data.stream.split();
        let (unused, error) = error.split();
        let pair = Pair {
            port: data.port,
            input: Input::Spdy(reader),
            output: Output::Spdy(writer),
            error: Output::Spdy(error),
            half_close: true,
        };
        self.connections.spawn(async move {
            pair.serve(&shared).await;
            // Kept until here: without it the stream would be reset.
            drop(unused);
        });
    }

    /// When the next stream will have waited too long for its partner.
    fn overdue(&self) -> impl Future<Output = ()> + use<> {
        let due = self.waiting.values().map(|half| half.due).min();
        async move {
            match due {
                Some(due) => sleep_until(due).await,
                None => future::pending().await,
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        for (id, half) in self.waiting.extract_if(|_, half| half.due <= now).collect::<Vec<_>>() {
            self.fail(half, format!("timed out waiting for streams of request {id}"));
        }
    }

    /// Tells the client, where there is an error stream to tell it on.
    fn fail(&mut self, half: Half, text: String) {
        tracing::debug!(%text, "port-forward streams do not match");
        let mut stream = half.stream;
        if half.kind == Kind::Data {
            return stream.reset(ResetStatus::Cancel);
        }
        self.connections.spawn(async move {
            if stream.send(text.into()).await.is_ok() {
                let _ = stream.finish();
            }
        });
    }
}

/// What the headers of a stream say.
fn read(incoming: &Incoming) -> Result<(String, Kind, u16), String> {
    let headers = incoming.headers();
    let port = port(headers.get(PORT).ok_or("\"port\" header is required")?)?;
    let kind = match headers.get(STREAM_TYPE) {
        Some(DATA) => Kind::Data,
        Some(ERROR) => Kind::Error,
        Some(other) => return Err(format!("invalid stream type {other:?}")),
        None => return Err("\"streamType\" header is required".to_owned()),
    };
    let id = match (headers.get(REQUEST_ID), kind) {
        (Some(id), _) if !id.is_empty() => id.to_owned(),
        // Old clients open the error stream, then the data stream, and number nothing.
        (_, Kind::Error) => incoming.id().to_string(),
        (_, Kind::Data) => incoming.id().saturating_sub(2).to_string(),
    };
    Ok((id, kind, port))
}
