//! A session over WebSocket channels.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{
    Request,
    number::{COUNT, ERROR, RESIZE, STDERR, STDIN, STDOUT},
    pump::{Job, Wires},
};
use crate::{
    limits::End,
    wire::websocket::{Channels, end_of},
};

pub(super) async fn serve<IO>(io: IO, request: &Request, job: Job<'_>) -> End
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (options, limits) = (request.options, job.limits);
    let mut channels = Channels::new(io, Role::Server, request.protocol.codec(), COUNT, limits).await;
    let mut wires = Wires {
        stdin: options.stdin.then(|| channels.input(STDIN)),
        stdout: options.stdout.then(|| channels.output(STDOUT)),
        stderr: options.stderr.then(|| channels.output(STDERR)),
        resize: options.tty.then(|| channels.input(RESIZE)),
        error: channels.output(ERROR),
    };
    let work = async move {
        // An empty message on the lowest channel that we write to tells the client that the connection stands.
        let first = wires.stdout.as_mut().or(wires.stderr.as_mut());
        match first.unwrap_or(&mut wires.error).send(&[]).await {
            Ok(()) => job.run(wires).await,
            Err(_) => End::ClientGone,
        }
    };
    end_of(work, channels.drive(), limits).await
}
