//! Container logs.

use std::{fmt, io, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;

use crate::{Result, pod::ContainerRef};

/// Bytes of a log, as they come.
pub type LogStream = BoxStream<'static, io::Result<Bytes>>;

/// Reads container logs.
#[async_trait]
pub trait Logs: Send + Sync {
    /// Opens the log of a container. Any number may be open at a time; dropping the stream closes it.
    ///
    /// `NotFound` for a pod or container that the backend does not have, or for `previous` without an earlier instance;
    /// `Unavailable` while a container has not started. With `follow` the stream ends when the container has ended.
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody>;
}

/// What part of a log is wanted, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// The last so many lines only. `Some(0)` is none; `None` is all.
    pub tail: Option<u64>,
    /// Lines from here on only.
    pub since: Option<Since>,
    /// Stop after so many bytes.
    pub limit_bytes: Option<u64>,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Go on as the container writes.
    pub follow: bool,
    /// The instance before the current one.
    pub previous: bool,
    /// What the container wrote where.
    pub output: Output,
}

/// Which of a container's two streams are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Both, as they were written.
    #[default]
    All,
    /// Standard output only.
    Stdout,
    /// Standard error only.
    Stderr,
}

/// A beginning in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// At this time.
    Time(Timestamp),
}

/// What a backend could do about the options. `follow`, `previous` and `output` are the provider's in every case; one that
/// cannot tell the streams of a container apart answers `Unsupported` when one of them is wanted.
pub enum LogBody {
    /// All options are applied: the server passes the bytes on.
    Final(LogStream),
    /// The whole log, each line with an RFC 3339 time and one blank before it: the server applies the options.
    Stamped(LogStream),
    /// The whole log without times: the server applies `tail` and `limit_bytes`, and refuses `since` and `timestamps`.
    Plain(LogStream),
}

impl fmt::Debug for LogBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Final(_) => "Final(..)",
            Self::Stamped(_) => "Stamped(..)",
            Self::Plain(_) => "Plain(..)",
        })
    }
}
