//! Exec, attach and port-forward. The provider hands out streams, and the core moves the bytes: half-close, time limits,
//! back-pressure and the differences of the wire protocols are the core's.

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
/// A stream to write to. Shutting it down is the end of input.
pub type BoxWrite = Box<dyn AsyncWrite + Send + Unpin>;
/// A stream in both directions.
pub type BoxDuplex = Box<dyn Duplex>;

/// Anything that can be read from and written to.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Runs commands in containers.
#[async_trait]
pub trait Exec: Send + Sync {
    /// Starts a command. Any number may run at a time. `NotFound` for a pod or container that the backend does not have,
    /// `Unavailable` for one that does not run, `Invalid` for a command that cannot be started.
    async fn start(
        &self,
        container: &ContainerRef,
        command: &[String],
        options: &ExecOptions,
    ) -> Result<Started>;
}

/// Attaches to the process that a container runs.
#[async_trait]
pub trait Attach: Send + Sync {
    /// Attaches to the container's process, which goes on when the session ends. Errors as for [`Exec::start`].
    async fn attach(&self, container: &ContainerRef, options: &AttachOptions) -> Result<Started>;
}

/// Connects to ports of a pod.
#[async_trait]
pub trait PortForward: Send + Sync {
    /// One connection to a port inside the pod. `NotFound` for an unknown pod, `Unavailable` when nothing listens there.
    async fn dial(&self, pod: &PodRef, port: u16) -> Result<Forward>;
}

/// Which streams a command gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Whether there is input.
    pub stdin: bool,
    /// Whether output is wanted.
    pub stdout: bool,
    /// Whether error output is wanted; never together with `tty`.
    pub stderr: bool,
    /// Whether it runs on a terminal.
    pub tty: bool,
}

/// Which streams are attached: the same choice as for a command.
pub type AttachOptions = ExecOptions;

/// A started command or attachment.
pub enum Started {
    /// Streams for the core to serve.
    Session(Session),
    /// An address where a container runtime serves this one session; the core proxies to it.
    Url(String),
}

/// The streams of a running command. Dropping the session closes them, and kills the process where the backend can.
pub struct Session {
    /// Where input goes; shut down at its end.
    pub stdin: Option<BoxWrite>,
    /// Where output comes from.
    pub stdout: Option<BoxRead>,
    /// Where error output comes from.
    pub stderr: Option<BoxRead>,
    /// Takes changes of the terminal's size; only with a tty.
    pub resize: Option<mpsc::Sender<TermSize>>,
    /// Resolves when the process has ended; output may still be waiting in the streams then.
    pub exit: BoxFuture<'static, Result<Exit>>,
}

/// A connection to a pod's port.
pub enum Forward {
    /// A stream for the core to serve. The words of an error of reading whose kind is `Other` are told to the client, as those
    /// of an error of [`PortForward::dial`] are: there are backends that learn only then that nothing listens.
    Stream(BoxDuplex),
    /// An address where a container runtime serves port-forwarding for this pod; the core proxies to it.
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
    /// The exit code; 128 plus the number for a process ended by a signal.
    pub code: i32,
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(session) => session.fmt(f),
            // The address is a one-time capability: whoever reads it in a log could use it.
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
