//! Errors of connections and streams.

use std::{io, sync::Arc, time::Duration};

use crate::codec::{self, EncodeError, ResetStatus};

/// Why a connection has ended or a stream failed. Cloneable, because all streams of a connection get it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transport failed.
    #[error("SPDY connection: {0}")]
    Io(#[from] Arc<io::Error>),
    /// The peer violated the protocol, or one of our limits.
    #[error("SPDY connection: the peer sent {0}")]
    Protocol(#[from] codec::Error),
    /// The peer closed the connection inside a frame.
    #[error("SPDY connection: the peer closed it inside a frame")]
    Truncated,
    /// The peer closed the connection; streams that it had not finished are cut off.
    #[error("SPDY connection: closed by the peer")]
    PeerClosed,
    /// This side closed or dropped the connection.
    #[error("SPDY connection: closed locally")]
    Closed,
    /// The driver was dropped before the connection ended.
    #[error("SPDY connection: its driver was dropped")]
    NotDriven,
    /// A PING was not answered.
    #[error("SPDY connection: nothing received from the peer for {0:?} after a PING")]
    KeepAlive(Duration),
    /// No traffic in either direction.
    #[error("SPDY connection: idle for {0:?}")]
    Idle(Duration),
    /// The peer did not read everything before the connection was closed.
    #[error("SPDY connection: closed before the peer had read everything")]
    Unsent,
    /// The peer accepts no more streams: it has sent GOAWAY.
    #[error("SPDY stream: the peer accepts no more streams")]
    GoneAway,
    /// All stream IDs are used; that takes a billion streams.
    #[error("SPDY stream: the connection has no more stream IDs: open another connection")]
    Exhausted,
    /// The stream was reset, by the peer, or locally because the peer violated the protocol.
    #[error("SPDY stream: reset with {0}")]
    Reset(ResetStatus),
    /// The data does not fit in a frame.
    #[error("SPDY stream: {0}")]
    Encode(#[from] EncodeError),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io(inner) => inner.kind(),
            Error::Protocol(_) => io::ErrorKind::InvalidData,
            Error::Truncated | Error::PeerClosed => io::ErrorKind::UnexpectedEof,
            Error::Closed | Error::NotDriven | Error::GoneAway => io::ErrorKind::ConnectionAborted,
            Error::KeepAlive(_) | Error::Idle(_) | Error::Unsent => io::ErrorKind::TimedOut,
            Error::Reset(_) => io::ErrorKind::ConnectionReset,
            Error::Exhausted => io::ErrorKind::QuotaExceeded,
            Error::Encode(_) => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
