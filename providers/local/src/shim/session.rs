//! The streams of an exec or attach session. The supervisor passes the file descriptors, so that no data goes through
//! it and backpressure works.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::termios::{Winsize, tcsetwinsize};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    net::UnixStream,
    sync::mpsc,
};
use vk_provider::{
    Error, Result,
    ability::{BoxRead, BoxWrite, Exit, Session, TermSize},
};

use super::protocol::{self, PassedFds, ShimReply, ShimRequest, Streams};
use crate::sys;

/// How the end of stdin reaches the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StdinClose {
    /// The client holds the only write end: the program sees when it is closed.
    ByDrop,
    /// The supervisor keeps the container's stdin open: the end must be sent as a message.
    ByMessage,
}

/// The first line of an answer, the descriptors received with it, and the bytes after it. `None` at the end of the
/// connection.
pub(super) async fn read_reply(
    socket: &UnixStream,
) -> io::Result<(Option<ShimReply>, Vec<OwnedFd>, Vec<u8>)> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    let reply = next(socket, &mut text, &mut fds).await?;
    Ok((reply, fds, text))
}

/// The next line.
async fn next(
    socket: &UnixStream,
    text: &mut Vec<u8>,
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Option<ShimReply>> {
    loop {
        if let Some(reply) = protocol::take_line(text) {
            return reply.map(Some);
        }
        socket.readable().await?;
        match socket.try_io(Interest::READABLE, || protocol::receive(socket, text, fds)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Opens a session from the received descriptors.
pub(super) fn open(
    socket: UnixStream,
    given: PassedFds,
    fds: Vec<OwnedFd>,
    rest: Vec<u8>,
    streams: Streams,
    stdin_close: StdinClose,
) -> io::Result<Session> {
    let mut fds = fds.into_iter();
    let mut take = |is: bool| -> io::Result<Option<Arc<AsyncFd<OwnedFd>>>> {
        if !is {
            return Ok(None);
        }
        let fd = fds.next().ok_or_else(|| io::Error::other("the session lacks a descriptor"))?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Some(Arc::new(sys::fd::register(fd)?)))
    };
    let (stdin, stdout, stderr) = (take(given.stdin)?, take(given.stdout)?, take(given.stderr)?);
    let terminal = take(given.terminal)?;
    let socket = Arc::new(socket);
    let of_terminal = |wanted: bool| terminal.clone().filter(|_| wanted);
    let stdin = stdin.or_else(|| of_terminal(streams.stdin)).map(|end| -> BoxWrite {
        let notify = (stdin_close == StdinClose::ByMessage).then(|| socket.clone());
        Box::new(FdWriter { end: Some(end), notify })
    });
    let stdout =
        stdout.or_else(|| of_terminal(streams.stdout)).map(|end| -> BoxRead { Box::new(FdReader(end)) });
    let stderr = stderr.map(|end| -> BoxRead { Box::new(FdReader(end)) });
    let (resize, sizes) = mpsc::channel(4);
    let resize = terminal.is_some().then_some(resize);
    let exit = Box::pin(wait_for_exit(socket, rest, terminal, sizes));
    Ok(Session { stdin, stdout, stderr, resize, exit })
}

/// Applies terminal sizes until the session ends.
async fn wait_for_exit(
    socket: Arc<UnixStream>,
    mut text: Vec<u8>,
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
    mut sizes: mpsc::Receiver<TermSize>,
) -> Result<Exit> {
    let mut fds = Vec::new();
    let resizing = async {
        while let (Some(terminal), Some(size)) = (&terminal, sizes.recv().await) {
            let size = Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
            // The terminal may be gone.
            let _ = tcsetwinsize(terminal.get_ref(), size);
        }
        std::future::pending::<()>().await;
    };
    let reply = tokio::select! {
        reply = next(&socket, &mut text, &mut fds) => reply,
        () = resizing => Ok(None),
    };
    match reply {
        Ok(Some(ShimReply::Ended(code))) => Ok(Exit { code }),
        Ok(Some(ShimReply::Failed(message))) => Err(Error::unavailable(message)),
        Ok(_) => Err(Error::unavailable("the container's shim has exited")),
        Err(error) => Err(Error::unavailable("read from the container's shim").caused_by(error)),
    }
}

/// Reads output to its end; beyond the limit it is dropped, so that the command does not block.
pub(super) async fn capture(output: Option<BoxRead>, limit: usize) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut output) = output else { return kept };
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = output.read(&mut bytes).await {
        let room = limit.saturating_sub(kept.len()).min(length);
        kept.extend_from_slice(&bytes[..room]);
    }
    kept
}

/// A pipe or terminal to read from.
struct FdReader(Arc<AsyncFd<OwnedFd>>);

impl AsyncRead for FdReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let read = ready.try_io(|end| {
                let mut end = UnbufferedFd(end.get_ref());
                end.read(buf.initialize_unfilled())
            });
            match read {
                Ok(Ok(length)) => {
                    buf.advance(length);
                    return Poll::Ready(Ok(()));
                }
                // A terminal that no process has open returns EIO.
                Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

/// A pipe or terminal to write to; closed on shutdown.
struct FdWriter {
    end: Option<Arc<AsyncFd<OwnedFd>>>,
    notify: Option<Arc<UnixStream>>,
}

impl FdWriter {
    fn close(&mut self) {
        if self.end.take().is_some()
            && let Some(socket) = self.notify.take()
        {
            // A line fits into the socket buffer, because nothing was sent before.
            let _ = socket.try_write(&protocol::line(&ShimRequest::InputEnded));
        }
    }
}

impl Drop for FdWriter {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsyncWrite for FdWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(end) = &self.end else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        loop {
            let mut ready = ready!(end.poll_write_ready(cx))?;
            match ready.try_io(|end| UnbufferedFd(end.get_ref()).write(bytes)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => return Poll::Ready(written),
                Err(_) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

/// Unbuffered reads and writes.
struct UnbufferedFd<'a>(&'a OwnedFd);

impl io::Read for UnbufferedFd<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, bytes)?)
    }
}

impl io::Write for UnbufferedFd<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
