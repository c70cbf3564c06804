//! A client connection of a supervisor.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};
use tokio::time::Instant;

use super::helper::Helper;
use crate::shim::{
    log::Stream,
    protocol::{self, PassedFds, ShimReply, ShimRequest, Streams},
};

/// How far an attached client may lag before it is disconnected: the container does not wait for it.
const MAX_LAG: usize = 1024 * 1024;
/// Maximum length of a request line; a command may be long.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// A client connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    text: Vec<u8>,
    pub(super) state: ConnectionState,
}

/// The state of a connection.
#[derive(Debug)]
pub(super) enum ConnectionState {
    /// No request yet.
    New,
    /// Waits for the exit of the container.
    Waiting,
    /// Its command is being started; `ends` are passed to the client.
    Starting {
        helper: Box<Helper>,
        given: PassedFds,
        ends: Vec<OwnedFd>,
        /// Deadline of the start.
        until: Option<Instant>,
        gone: bool,
    },
    /// Its command runs.
    Running { pid: i32 },
    /// It receives the container's output.
    Attached { stdout: Option<OwnedFd>, stderr: Option<OwnedFd>, stdin: bool },
    /// To be closed.
    Done,
}

/// What was read from a connection.
#[derive(Debug)]
pub(super) enum Received {
    Nothing,
    Request(ShimRequest),
    Gone,
}

impl Connection {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, text: Vec::new(), state: ConnectionState::New })
    }

    /// Reads what is available.
    pub(super) fn read_request(&mut self) -> Received {
        let mut bytes = [0; 4096];
        match rustix::io::read(&self.socket, &mut bytes) {
            Ok(0) => return Received::Gone,
            Ok(length) => self.text.extend_from_slice(&bytes[..length]),
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(_) => return Received::Gone,
        }
        match protocol::take_line(&mut self.text) {
            Some(Ok(request)) => Received::Request(request),
            None if self.text.len() < MAX_REQUEST => Received::Nothing,
            // Not one of our clients.
            Some(Err(_)) | None => Received::Gone,
        }
    }

    /// Sends a line. If the client does not read, the next read finds it gone.
    pub(super) fn send(&self, reply: &ShimReply) {
        let _ = protocol::send(&self.socket, &protocol::line(reply), &[]);
    }

    /// Sends a line with descriptors.
    pub(super) fn send_fds(&self, given: PassedFds, ends: &[BorrowedFd<'_>]) -> io::Result<()> {
        protocol::send(&self.socket, &protocol::line(&ShimReply::Begun(given)), ends)
    }

    /// Starts to copy output to the client. `terminal` and `stdin` are the container's.
    pub(super) fn attach(
        &mut self,
        streams: Streams,
        stdin: Option<&OwnedFd>,
        terminal: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let stdin = stdin.filter(|_| streams.stdin);
        let (theirs_out, stdout) = output_pipe(streams.stdout)?;
        let (theirs_err, stderr) = output_pipe(streams.stderr && terminal.is_none())?;
        let given = PassedFds {
            stdin: stdin.is_some(),
            stdout: theirs_out.is_some(),
            stderr: theirs_err.is_some(),
            terminal: terminal.is_some(),
        };
        let ends = [stdin, theirs_out.as_ref(), theirs_err.as_ref(), terminal];
        let ends: Vec<BorrowedFd<'_>> = ends.into_iter().flatten().map(OwnedFd::as_fd).collect();
        self.send_fds(given, &ends)?;
        self.state = ConnectionState::Attached { stdout, stderr, stdin: streams.stdin };
        Ok(())
    }

    /// Copies output to an attached client.
    pub(super) fn copy(&mut self, from: Stream, bytes: &[u8]) {
        let ConnectionState::Attached { stdout, stderr, .. } = &mut self.state else { return };
        let end = match from {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        };
        let Some(pipe) = end else { return };
        match rustix::io::write(&*pipe, bytes) {
            Ok(length) if length == bytes.len() => {}
            // The client has closed this stream.
            Err(Errno::PIPE) => *end = None,
            Ok(_) | Err(_) => {
                self.send(&ShimReply::Failed("the client does not read the output fast enough".to_owned()));
                self.state = ConnectionState::Done;
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A pipe for copies of output: the client's end and ours. Its size is how far the client may lag.
fn output_pipe(wanted: bool) -> io::Result<(Option<OwnedFd>, Option<OwnedFd>)> {
    if !wanted {
        return Ok((None, None));
    }
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // If the kernel refuses, the pipe keeps its default size.
    let _ = fcntl_setpipe_size(&ours, MAX_LAG);
    Ok((Some(theirs), Some(ours)))
}
