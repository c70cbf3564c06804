//! Container logs.

use std::{fmt, io, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;

use crate::{Result, pod::ContainerRef};

/// Chunks of a log.
pub type LogStream = BoxStream<'static, io::Result<Bytes>>;

/// Reads container logs.
#[async_trait]
pub trait Logs: Send + Sync {
    /// Opens the log of a container. Any number may be open at a time; dropping the stream closes it.
    ///
    /// `NotFound` for a pod or container that the backend does not have, or for `previous` without an earlier instance;
    /// `Unavailable` before the container has started. With `follow` the stream ends when the container has ended.
    async fn open(&self, container: &ContainerRef, options: &LogOptions) -> Result<LogBody>;
}

/// The requested part and form of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// The number of lines from the end; `None` for all.
    pub tail: Option<u64>,
    /// Only lines from this time on.
    pub since: Option<Since>,
    /// The maximum number of bytes.
    pub limit_bytes: Option<u64>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Keep the stream open for new lines.
    pub follow: bool,
    /// Read the log of the previous instance of the container.
    pub previous: bool,
    /// Which output streams to read.
    pub output: Output,
}

/// The output streams of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Both, in the order of writing.
    #[default]
    All,
    /// Standard output only.
    Stdout,
    /// Standard error only.
    Stderr,
}

/// The start of the requested time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Relative to now.
    Ago(Duration),
    /// Absolute.
    Time(Timestamp),
}

/// A log, with the options that the provider has applied. The provider always applies `follow`, `previous` and `output`; if it
/// cannot separate the streams of a container, it returns `Unsupported` for a request of one of them.
pub enum LogBody {
    /// All options are applied: the server forwards the bytes.
    Final(LogStream),
    /// The whole log, each line prefixed with an RFC 3339 time and a space: the server applies the options.
    Stamped(LogStream),
    /// The whole log without times: the server applies `tail` and `limit_bytes`, and rejects `since` and `timestamps`.
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
