//! A session over WebSocket channels.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{
    Request,
    number::{COUNT, ERROR, RESIZE, STDERR, STDIN, STDOUT},
    runner::{ClientStreams, SessionRunner},
};
use crate::{
    limits::SessionEnd,
    stream::websocket::{WebSocketChannels, serve_until_closed},
};

pub(super) async fn serve<IO>(io: IO, request: &Request, runner: SessionRunner<'_>) -> SessionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (options, limits) = (request.options, runner.limits);
    let mut channels =
        WebSocketChannels::new(io, Role::Server, request.protocol.codec(), COUNT, limits).await;
    let mut streams = ClientStreams {
        stdin: options.stdin.then(|| channels.input(STDIN)),
        stdout: options.stdout.then(|| channels.output(STDOUT)),
        stderr: options.stderr.then(|| channels.output(STDERR)),
        resize: options.tty.then(|| channels.input(RESIZE)),
        error: channels.output(ERROR),
    };
    let work = async move {
        // An empty message on the lowest output channel tells the client that the connection works.
        let first = streams.stdout.as_mut().or(streams.stderr.as_mut());
        match first.unwrap_or(&mut streams.error).send(&[]).await {
            Ok(()) => runner.run(streams).await,
            Err(_) => SessionEnd::ClientGone,
        }
    };
    serve_until_closed(work, channels.drive(), limits).await
}
