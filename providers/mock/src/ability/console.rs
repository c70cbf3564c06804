//! The process side of the streams of a session.

use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    sync::mpsc,
    task::JoinSet,
};
use vk_provider::{
    Error,
    ability::{ExecOptions, Exit, Session, TermSize},
};

/// The capacity of a pipe, as on Linux.
pub(super) const PIPE: usize = 64 * 1024;
/// The maximum number of queued size changes.
const RESIZES: usize = 16;

/// The process's ends of the streams.
pub(super) struct Console {
    pub(super) stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
    stderr: Option<DuplexStream>,
    pub(super) resize: Option<mpsc::Receiver<TermSize>>,
    pub(super) tty: bool,
}

/// The reader of the output is gone.
#[derive(Debug)]
pub(super) struct BrokenPipe;

// === impl Console ===

impl Console {
    /// Runs a process with these streams. Dropping the exit future of the session stops it.
    pub(super) fn session<F>(options: ExecOptions, process: impl FnOnce(Self) -> F) -> Session
    where
        F: Future<Output = i32> + Send + 'static,
    {
        // Used in one direction only. Unlike the halves of a split stream, each end notices when the other is dropped.
        let pipe = |wanted: bool| wanted.then(|| duplex(PIPE)).unzip();
        let (stdin_read, stdin) = pipe(options.stdin);
        let (stdout, stdout_write) = pipe(options.stdout);
        let (stderr, stderr_write) = pipe(options.stderr && !options.tty);
        let (resize, resizes) = options.tty.then(|| mpsc::channel(RESIZES)).unzip();
        let console = Self {
            stdin: stdin_read,
            stdout: stdout_write,
            stderr: stderr_write,
            resize: resizes,
            tty: options.tty,
        };
        let mut task = JoinSet::new();
        task.spawn(process(console));
        let exit = async move {
            match task.join_next().await {
                Some(Ok(code)) => Ok(Exit { code }),
                _ => Err(Error::internal("run a process of the mock: it panicked")),
            }
        };
        Session {
            stdin: stdin.map(|stream| Box::new(stream) as _),
            stdout: stdout.map(|stream| Box::new(stream) as _),
            stderr: stderr.map(|stream| Box::new(stream) as _),
            resize,
            exit: Box::pin(exit),
        }
    }

    /// Writes to standard output, if it is connected.
    pub(super) async fn out(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), BrokenPipe> {
        write(self.stdout.as_mut(), bytes.as_ref()).await
    }

    /// Writes to standard error, or to standard output on a terminal.
    pub(super) async fn err(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), BrokenPipe> {
        let stream = if self.tty { self.stdout.as_mut() } else { self.stderr.as_mut() };
        write(stream, bytes.as_ref()).await
    }
}

async fn write(stream: Option<&mut DuplexStream>, bytes: &[u8]) -> Result<(), BrokenPipe> {
    match stream {
        Some(stream) => stream.write_all(bytes).await.map_err(|_| BrokenPipe),
        None => Ok(()),
    }
}

/// A stream that owns the task at its other end.
pub(super) struct OwnedDuplex {
    pub(super) stream: DuplexStream,
    pub(super) _task: JoinSet<()>,
}

mod owned_duplex {
    use std::{
        io,
        pin::Pin,
        task::{Context, Poll},
    };

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::OwnedDuplex;

    impl AsyncRead for OwnedDuplex {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for OwnedDuplex {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(cx)
        }
    }
}
