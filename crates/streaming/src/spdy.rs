//! SPDY code shared by exec and port-forward.

use std::{io, time::Duration};

use futures::FutureExt as _;
use tokio::time::sleep;
use vk_spdy::{Config, Connection, Error, ResetStatus};

use crate::limits::{SessionEnd, SessionLimits};

/// The header with the purpose of a stream.
pub(crate) const STREAM_TYPE: &str = "streamtype";
/// The stream type of error streams.
pub(crate) const ERROR: &str = "error";
/// The stream type of a forwarded connection's data.
pub(crate) const DATA: &str = "data";
/// The header with the port of a forwarded connection.
pub(crate) const PORT: &str = "port";
/// The header that pairs the two streams of a forwarded connection.
pub(crate) const REQUEST_ID: &str = "requestid";

/// The configuration of a connection.
pub(crate) fn config(limits: &SessionLimits) -> Config {
    let mut config = Config::default();
    config.linger = limits.linger;
    config
}

/// Rejects further streams until the connection accepts no more.
pub(crate) async fn reject_streams(connection: &Connection) {
    while let Ok(Some(incoming)) = connection.accept().await {
        incoming.reject(ResetStatus::RefusedStream);
    }
}

/// Sends pings, and returns when one cannot be sent: the client disconnected while nothing was read, because its input waits for a
/// process that does not read. A late answer means nothing: it may be queued behind that input.
pub(crate) async fn keep_alive(connection: &Connection, period: Option<Duration>) {
    let Some(period) = period else { return std::future::pending().await };
    loop {
        sleep(period).await;
        if let Some(Err(_)) = connection.ping().now_or_never() {
            return;
        }
    }
}

/// Converts the end of a connection to the end of its session.
pub(crate) fn session_end(ended: Result<(), Error>) -> SessionEnd {
    match ended {
        Err(error @ Error::Protocol(_)) => SessionEnd::Protocol(error.to_string()),
        // A tunnel has its own protocol errors.
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            SessionEnd::Protocol(error.to_string())
        }
        _ => SessionEnd::ClientGone,
    }
}
