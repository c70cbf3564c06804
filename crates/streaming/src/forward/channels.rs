//! Port-forward over WebSocket channels: for each port of the query a channel for data and one for errors.

use futures::future;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Request, Shared, relay::Pair};
use crate::{
    limits::End,
    wire::websocket::{Channels, end_of},
};

pub(super) async fn serve<IO>(io: IO, request: &Request, shared: &Shared) -> End
where
    IO: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (limits, count) = (&shared.limits, request.ports.len() * 2);
    let mut channels = Channels::new(io, Role::Server, request.protocol.codec(), count, limits).await;
    let numbers = (0_u8..=254).step_by(2);
    let pairs = request.ports.iter().zip(numbers).map(|(&port, number)| Pair {
        port,
        input: channels.input(number),
        output: channels.output(number),
        error: channels.output(number + 1),
        half_close: false,
    });
    let pairs: Vec<_> = pairs.map(|pair| begin(pair, shared)).collect();
    let work = async {
        tokio::select! {
            _ = future::join_all(pairs) => End::Done,
            () = shared.meter.idle(limits.idle()) => End::Idle,
        }
    };
    end_of(work, channels.drive(), limits).await
}

/// Both channels begin with the port, in little-endian bytes.
async fn begin(mut pair: Pair, shared: &Shared) {
    let port = pair.port.to_le_bytes();
    let told = async {
        pair.output.send(&port).await?;
        pair.error.send(&port).await
    };
    if told.await.is_ok() {
        pair.serve(shared).await;
    }
}
