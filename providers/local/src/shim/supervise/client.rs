//! One connection to a supervisor.

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
    wire::{self, Given, Reply, Request, Streams},
};

/// How far somebody who is attached may be behind: then the connection is cut, because the container does not wait.
const BEHIND: usize = 1024 * 1024;
/// A request is a line, and a command may be long.
const LONGEST: usize = 4 * 1024 * 1024;

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    socket: UnixStream,
    text: Vec<u8>,
    pub(super) role: Role,
}

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Role {
    /// It has not said yet.
    Asking,
    /// It waits for the end.
    Waiting,
    /// Its command is being started; these ends are for the client.
    Starting {
        helper: Box<Helper>,
        given: Given,
        ends: Vec<OwnedFd>,
        /// Then it has taken too long.
        until: Option<Instant>,
        gone: bool,
    },
    /// Its command runs.
    Running { pid: i32 },
    /// It sees the container's output.
    Attached { stdout: Option<OwnedFd>, stderr: Option<OwnedFd>, stdin: bool },
    /// Nothing more to say.
    Done,
}

/// What came from a connection.
#[derive(Debug)]
pub(super) enum Heard {
    Nothing,
    Request(Request),
    Gone,
}

impl Client {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, text: Vec::new(), role: Role::Asking })
    }

    /// Reads what there is.
    pub(super) fn hear(&mut self) -> Heard {
        let mut bytes = [0; 4096];
        match rustix::io::read(&self.socket, &mut bytes) {
            Ok(0) => return Heard::Gone,
            Ok(length) => self.text.extend_from_slice(&bytes[..length]),
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::Gone,
        }
        match wire::take_line(&mut self.text) {
            Some(Ok(request)) => Heard::Request(request),
            None if self.text.len() < LONGEST => Heard::Nothing,
            // Nobody of ours speaks like that.
            Some(Err(_)) | None => Heard::Gone,
        }
    }

    /// Says a line. Whoever does not read it is treated as gone when that shows.
    pub(super) fn say(&self, reply: &Reply) {
        let _ = wire::send(&self.socket, &wire::line(reply), &[]);
    }

    /// Says a line with descriptors.
    pub(super) fn give(&self, given: Given, ends: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(&self.socket, &wire::line(&Reply::Begun(given)), ends)
    }

    /// Begins to send copies of the output. `terminal` and `stdin` are the container's.
    pub(super) fn attach(
        &mut self,
        streams: Streams,
        stdin: Option<&OwnedFd>,
        terminal: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let stdin = stdin.filter(|_| streams.stdin);
        let (theirs_out, stdout) = copies(streams.stdout)?;
        let (theirs_err, stderr) = copies(streams.stderr && terminal.is_none())?;
        let given = Given {
            stdin: stdin.is_some(),
            stdout: theirs_out.is_some(),
            stderr: theirs_err.is_some(),
            terminal: terminal.is_some(),
        };
        let ends = [stdin, theirs_out.as_ref(), theirs_err.as_ref(), terminal];
        let ends: Vec<BorrowedFd<'_>> = ends.into_iter().flatten().map(OwnedFd::as_fd).collect();
        self.give(given, &ends)?;
        self.role = Role::Attached { stdout, stderr, stdin: streams.stdin };
        Ok(())
    }

    /// Sends a copy of output to one who is attached.
    pub(super) fn copy(&mut self, from: Stream, bytes: &[u8]) {
        let Role::Attached { stdout, stderr, .. } = &mut self.role else { return };
        let end = match from {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        };
        let Some(pipe) = end else { return };
        match rustix::io::write(&*pipe, bytes) {
            Ok(length) if length == bytes.len() => {}
            // It does not want this stream any more.
            Err(Errno::PIPE) => *end = None,
            Ok(_) | Err(_) => {
                self.say(&Reply::Failed("the output was not read fast enough".to_owned()));
                self.role = Role::Done;
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A pipe for copies: their end and ours. It is what one may be behind.
fn copies(wanted: bool) -> io::Result<(Option<OwnedFd>, Option<OwnedFd>)> {
    if !wanted {
        return Ok((None, None));
    }
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // Where the kernel does not give as much, it is the usual size.
    let _ = fcntl_setpipe_size(&ours, BEHIND);
    Ok((Some(theirs), Some(ours)))
}
