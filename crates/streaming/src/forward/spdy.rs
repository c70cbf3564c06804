//! Port-forward over SPDY: an error stream and a data stream form a connection.

use std::{collections::HashMap, future::Future};

use futures::future::{self, Either};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use vk_spdy::{Connection, Incoming, ResetStatus, Stream};

use super::{ForwardContext, connection::ForwardedConnection, port};
use crate::{
    limits::SessionEnd,
    spdy::{self, DATA, ERROR, PORT, REQUEST_ID, STREAM_TYPE},
    stream::{StreamReader, StreamWriter},
};

pub(super) async fn serve<IO>(io: IO, context: &ForwardContext) -> SessionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    let limits = &context.limits;
    let (connection, driver) = Connection::server(io, spdy::config(limits));
    let work = async {
        tokio::select! {
            end = StreamPairs::new(context).serve(&connection) => end,
            () = spdy::keep_alive(&connection, limits.keepalive) => SessionEnd::ClientGone,
            () = context.activity.idle(limits.idle()) => SessionEnd::Idle,
        }
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

/// Streams waiting for their partners, and complete connections.
struct StreamPairs<'a> {
    context: &'a ForwardContext,
    waiting: HashMap<String, UnpairedStream>,
    connections: JoinSet<()>,
}

/// One stream of a pair.
#[derive(Debug)]
struct UnpairedStream {
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

impl<'a> StreamPairs<'a> {
    fn new(context: &'a ForwardContext) -> Self {
        Self { context, waiting: HashMap::new(), connections: JoinSet::new() }
    }

    /// Accepts streams, forever.
    async fn serve(mut self, connection: &Connection) -> SessionEnd {
        let mut open = true;
        loop {
            let next_expiry = self.next_expiry();
            tokio::select! {
                incoming = connection.accept(), if open => match incoming {
                    Ok(Some(incoming)) => self.take(incoming),
                    // No more streams: existing ones continue until the connection ends.
                    _ => open = false,
                },
                Some(_) = self.connections.join_next() => {}
                () = next_expiry => self.expire(),
            }
        }
    }

    fn take(&mut self, incoming: Incoming) {
        let (id, kind, port) = match read(&incoming) {
            Ok(read) => read,
            Err(wrong) => {
                tracing::debug!(%wrong, "port-forward stream rejected");
                return incoming.reject(ResetStatus::RefusedStream);
            }
        };
        match self.waiting.remove(&id) {
            None => {
                let due = Instant::now() + self.context.limits.creation;
                let unpaired = UnpairedStream { stream: incoming.accept(), kind, port, due };
                self.waiting.insert(id, unpaired);
            }
            Some(first) if first.kind == kind => {
                incoming.reject(ResetStatus::ProtocolError);
                let name = if kind == Kind::Data { DATA } else { ERROR };
                self.fail(
                    first,
                    format!("error processing stream for request {id}: {name} stream already assigned"),
                );
            }
            Some(first) => {
                let second = UnpairedStream { stream: incoming.accept(), kind, port, due: first.due };
                let (data, error) = if kind == Kind::Data { (second, first) } else { (first, second) };
                self.connect(data, error.stream);
            }
        }
    }

    fn connect(&mut self, data: UnpairedStream, error: Stream) {
        let context = self.context.clone();
        let (reader, writer) = data.stream.split();
        let (unused, error) = error.split();
        let connection = ForwardedConnection {
            port: data.port,
            input: StreamReader::Spdy(reader),
            output: StreamWriter::Spdy(writer),
            error: StreamWriter::Spdy(error),
            half_close: true,
        };
        self.connections.spawn(async move {
            connection.serve(&context).await;
            // Kept until here: otherwise the stream would be reset.
            drop(unused);
        });
    }

    /// When the next unpaired stream expires.
    fn next_expiry(&self) -> impl Future<Output = ()> + use<> {
        let due = self.waiting.values().map(|unpaired| unpaired.due).min();
        async move {
            match due {
                Some(due) => sleep_until(due).await,
                None => future::pending().await,
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        for (id, unpaired) in self.waiting.extract_if(|_, unpaired| unpaired.due <= now).collect::<Vec<_>>() {
            self.fail(unpaired, format!("timed out waiting for streams of request {id}"));
        }
    }

    /// Reports an error to the client, if the stream is an error stream.
    fn fail(&mut self, unpaired: UnpairedStream, text: String) {
        tracing::debug!(%text, "port-forward streams do not match");
        let mut stream = unpaired.stream;
        if unpaired.kind == Kind::Data {
            return stream.reset(ResetStatus::Cancel);
        }
        self.connections.spawn(async move {
            if stream.send(text.into()).await.is_ok() {
                let _ = stream.finish();
            }
        });
    }
}

/// Parses the headers of a stream.
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
        // Old clients open the error stream and then the data stream, without request IDs.
        (_, Kind::Error) => incoming.id().to_string(),
        (_, Kind::Data) => incoming.id().saturating_sub(2).to_string(),
    };
    Ok((id, kind, port))
}
