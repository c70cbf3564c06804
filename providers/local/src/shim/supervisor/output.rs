//! Output of a container: copied to its log and to attached clients.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use jiff::Timestamp;
use rustix::io::Errno;

use super::helper::set_nonblocking;
use crate::shim::log::{CriLog, Stream};

/// The capacity of a pipe.
const CHUNK: usize = 64 * 1024;

/// The supervisor's ends of the container's output, while they are open.
#[derive(Debug)]
pub(super) struct ContainerOutput {
    pub(super) log: CriLog,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// The terminal, for both output and input.
    terminal: Option<OwnedFd>,
    buffer: Box<[u8]>,
}

impl ContainerOutput {
    pub(super) fn new(log: &Path) -> io::Result<Self> {
        Ok(Self {
            log: CriLog::open(log)?,
            stdout: None,
            stderr: None,
            terminal: None,
            buffer: vec![0; CHUNK].into_boxed_slice(),
        })
    }

    pub(super) fn pipes(&mut self, stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) {
        (self.stdout, self.stderr) = (stdout, stderr);
    }

    pub(super) fn terminal(&mut self, terminal: OwnedFd) {
        self.terminal = Some(terminal);
    }

    /// Makes a descriptor non-blocking.
    pub(super) fn nonblocking(descriptor: OwnedFd) -> io::Result<OwnedFd> {
        set_nonblocking(&descriptor)?;
        Ok(descriptor)
    }

    pub(super) fn console(&self) -> Option<&OwnedFd> {
        self.terminal.as_ref()
    }

    /// The open ends.
    pub(super) fn open_ends(&self) -> impl Iterator<Item = (Stream, BorrowedFd<'_>)> {
        let stdout = self.stdout.as_ref().or(self.terminal.as_ref());
        let all = [(Stream::Stdout, stdout), (Stream::Stderr, self.stderr.as_ref())];
        all.into_iter().filter_map(|(stream, end)| end.map(|end| (stream, end.as_fd())))
    }

    /// Reads once and writes to the log. Returns what was read; `None` if nothing is available.
    pub(super) fn read_and_log(&mut self, stream: Stream, now: Timestamp) -> Option<(&[u8], io::Result<()>)> {
        let end = match stream {
            Stream::Stdout => self.stdout.as_ref().or(self.terminal.as_ref())?,
            Stream::Stderr => self.stderr.as_ref()?,
        };
        let length = match rustix::io::read(end, &mut *self.buffer) {
            Ok(length) if length > 0 => length,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            // A terminal that no process has open returns EIO.
            Ok(_) | Err(_) => {
                match stream {
                    Stream::Stdout => (self.stdout, self.terminal) = (None, None),
                    Stream::Stderr => self.stderr = None,
                }
                return None;
            }
        };
        let bytes = &self.buffer[..length];
        let logged = self.log.write(stream, bytes, now);
        Some((bytes, logged))
    }

    /// Ends the log.
    pub(super) fn finish(&mut self, now: Timestamp) -> io::Result<()> {
        self.log.finish(now)
    }
}
