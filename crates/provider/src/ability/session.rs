//! Exec, attach and port-forward. The provider returns streams, and the core copies the bytes: it handles half-close, timeouts,
//! back-pressure and the wire protocols.

use std::fmt;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use crate::{
    Result,
    pod::{ContainerRef, PodRef},
};

/// A stream to read from.
pub type BoxRead = Box<dyn AsyncRead + Send + Unpin>;
/// A stream to write to. Shutting it down signals the end of input.
pub type BoxWrite = Box<dyn AsyncWrite + Send + Unpin>;
/// A stream in both directions.
pub type BoxDuplex = Box<dyn Duplex>;

/// A stream that can be read from and written to.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Runs commands in containers.
#[async_trait]
pub trait Exec: Send + Sync {
    /// Starts a command. Any number may run at a time. `NotFound` for a pod or container that the backend does not have,
    /// `Unavailable` for one that is not running, `Invalid` for a command that cannot be started.
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started>;
}

/// Attaches to the main process of a container.
#[async_trait]
pub trait Attach: Send + Sync {
    /// Attaches to the container's main process, which keeps running when the session ends. Errors as for [`Exec::start`].
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started>;
}

/// Connects to ports of a pod.
#[async_trait]
pub trait PortForward: Send + Sync {
    /// Opens one connection to a port inside the pod. `NotFound` for an unknown pod, `Unavailable` if nothing listens on the port.
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward>;
}

/// The streams of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Whether standard input is connected.
    pub stdin: bool,
    /// Whether standard output is connected.
    pub stdout: bool,
    /// Whether standard error is connected; never together with `tty`.
    pub stderr: bool,
    /// Whether the command runs on a terminal.
    pub tty: bool,
}

/// The streams to attach, as for a command.
pub type AttachOptions = ExecOptions;

/// A started command or attachment.
pub enum Started {
    /// Streams that the core serves to the client.
    Session(Session),
    /// A URL at which a container runtime serves this session; the core proxies to it.
    Url(String),
}

/// The streams of a running command. Dropping the session closes them, and kills the process where the backend can.
pub struct Session {
    /// Standard input; shut down at the end of input.
    pub stdin: Option<BoxWrite>,
    /// Standard output.
    pub stdout: Option<BoxRead>,
    /// Standard error.
    pub stderr: Option<BoxRead>,
    /// Receives changes of the terminal's size; only with a tty.
    pub resize: Option<mpsc::Sender<TermSize>>,
    /// Resolves when the process has ended; the streams may still contain unread output.
    pub exit: BoxFuture<'static, Result<Exit>>,
}

/// A connection to a pod's port.
pub enum Forward {
    /// A stream that the core serves to the client. The text of a read error of kind `Other` is sent to the client, like that of
    /// an error of [`PortForward::dial`]: some backends learn only then that nothing listens on the port.
    Stream(BoxDuplex),
    /// A URL at which a container runtime serves port-forwarding for this pod; the core proxies to it.
    Url(String),
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 plus the signal number for a process that was killed by a signal.
    pub code: i32,
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(session) => session.fmt(f),
            // The URL is a one-time capability that must not appear in logs.
            Self::Url(_) => f.write_str("Url(..)"),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("stdin", &self.stdin.is_some())
            .field("stdout", &self.stdout.is_some())
            .field("stderr", &self.stderr.is_some())
            .field("resize", &self.resize.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stream(_) => "Stream(..)",
            Self::Url(_) => "Url(..)",
        })
    }
}
