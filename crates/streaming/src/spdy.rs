//! What exec and port-forward have in common over SPDY.

use std::{io, time::Duration};

use futures::FutureExt as _;
use tokio::time::sleep;
use vk_spdy::{Config, Connection, Error, ResetStatus};

use crate::limits::{End, Limits};

/// The header that says what a stream is for.
pub(crate) const STREAM_TYPE: &str = "streamtype";
/// Its value for a stream of errors.
pub(crate) const ERROR: &str = "error";
/// Its value for the bytes of a forwarded connection.
pub(crate) const DATA: &str = "data";
/// The header with the port of a forwarded connection.
pub(crate) const PORT: &str = "port";
/// The header with which the two streams of a forwarded connection find each other.
pub(crate) const REQUEST_ID: &str = "requestid";

/// The settings of a connection.
pub(crate) fn config(limits: &Limits) -> Config {
    let mut config = Config::default();
    config.linger = limits.linger;
    config
}

/// Answers those who want a stream when there are no more to be had. Ends when nobody can ask any more.
pub(crate) async fn refuse_others(connection: &Connection) {
    while let Ok(Some(incoming)) = connection.accept().await {
        incoming.refuse(ResetStatus::RefusedStream);
    }
}

/// Sends pings, and ends when one cannot be sent: the client has gone while nothing was read, because its input waits for
/// a process that does not take it. That an answer is late means nothing: it may stand behind that input.
pub(crate) async fn keep_alive(connection: &Connection, period: Option<Duration>) {
    let Some(period) = period else { return std::future::pending().await };
    loop {
        sleep(period).await;
        if let Some(Err(_)) = connection.ping().now_or_never() {
            return;
        }
    }
}

/// What the end of a connection means for the session that it carried.
pub(crate) fn end(ended: Result<(), Error>) -> End {
    match ended {
        Err(error @ Error::Protocol(_)) => End::Protocol(error.to_string()),
        // A tunnel has a protocol of its own.
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
            End::Protocol(error.to_string())
        }
        _ => End::ClientGone,
    }
}
