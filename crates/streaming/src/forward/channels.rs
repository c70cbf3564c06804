//! Port-forward over WebSocket channels: a data channel and an error channel for each port in the query.

use futures::future;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{ForwardContext, Request, connection::ForwardedConnection};
use crate::{
    limits::SessionEnd,
    stream::websocket::{WebSocketChannels, serve_until_closed},
};

pub(super) async fn serve<IO>(io: IO, request: &Request, context: &ForwardContext) -> SessionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (limits, count) = (&context.limits, request.ports.len() * 2);
    let mut channels =
        WebSocketChannels::new(io, Role::Server, request.protocol.codec(), count, limits).await;
    let numbers = (0_u8..=254).step_by(2);
    let connections = request.ports.iter().zip(numbers).map(|(&port, number)| ForwardedConnection {
        port,
        input: channels.input(number),
        output: channels.output(number),
        error: channels.output(number + 1),
        half_close: false,
    });
    let connections: Vec<_> = connections.map(|connection| begin(connection, context)).collect();
    let work = async {
        tokio::select! {
            _ = future::join_all(connections) => SessionEnd::Done,
            () = context.activity.idle(limits.idle()) => SessionEnd::Idle,
        }
    };
    serve_until_closed(work, channels.drive(), limits).await
}

/// Both channels start with the port, in little-endian bytes.
async fn begin(mut connection: ForwardedConnection, context: &ForwardContext) {
    let port = connection.port.to_le_bytes();
    let error_text = async {
        connection.output.send(&port).await?;
        connection.error.send(&port).await
    };
    if error_text.await.is_ok() {
        connection.serve(context).await;
    }
}
