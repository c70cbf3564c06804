//! What can go wrong with a connection or a stream.

use std::{io, sync::Arc, time::Duration};

use crate::codec::{self, EncodeError, ResetStatus};

/// Why a connection has ended or a stream is not to be had. All streams of a connection get the same one, so it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The carrier failed.
    #[error("SPDY connection: {0}")]
    Io(#[from] Arc<io::Error>),
    /// The peer broke the protocol, or a limit of ours.
    #[error("SPDY connection: the peer sent {0}")]
    Protocol(#[from] codec::Error),
    /// The peer was gone in the midst of a frame.
    #[error("SPDY connection: the peer closed it in the midst of a frame")]
    Truncated,
    /// The peer closed the connection; a stream that it had not finished before is cut off.
    #[error("SPDY connection: the peer has closed it")]
    PeerClosed,
    /// This side closed the connection, or dropped it.
    #[error("SPDY connection: closed on this side")]
    Closed,
    /// The driver was dropped before the connection's end.
    #[error("SPDY connection: nobody drives it any more")]
    NotDriven,
    /// A PING was sent, and nothing came back.
    #[error("SPDY connection: nothing came from the peer for {0:?} after a PING")]
    KeepAlive(Duration),
    /// Neither side sent anything.
    #[error("SPDY connection: idle for {0:?}")]
    Idle(Duration),
    /// The peer did not take all that was to be sent before the close.
    #[error("SPDY connection: closed before the peer took all that was sent")]
    Unsent,
    /// The peer takes no more streams: it has sent GOAWAY.
    #[error("SPDY stream: the peer takes no more streams")]
    GoneAway,
    /// The numbers for streams are used up; that takes a billion of them.
    #[error("SPDY stream: the connection has no more numbers for streams: open another connection")]
    Exhausted,
    /// The stream was reset: by the peer, or here because the peer broke a rule.
    #[error("SPDY stream: reset with {0}")]
    Reset(ResetStatus),
    /// What was to be sent does not fit in a frame.
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
