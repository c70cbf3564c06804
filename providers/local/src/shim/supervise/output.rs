//! What a container writes: into its log, and to whoever is attached.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use jiff::Timestamp;
use rustix::io::Errno;

use super::helper::nonblocking;
use crate::shim::log::{Log, Stream};

/// As much as a pipe holds.
const CHUNK: usize = 64 * 1024;

/// The container's ends of output, as far as they are open.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) log: Log,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// The terminal: output comes from it, and input goes to it.
    terminal: Option<OwnedFd>,
    buffer: Box<[u8]>,
}

impl Output {
    pub(super) fn new(log: &Path) -> io::Result<Self> {
        Ok(Self {
            log: Log::open(log)?,
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

    /// A descriptor that never blocks us.
    pub(super) fn ready(descriptor: OwnedFd) -> io::Result<OwnedFd> {
        nonblocking(&descriptor)?;
        Ok(descriptor)
    }

    pub(super) fn console(&self) -> Option<&OwnedFd> {
        self.terminal.as_ref()
    }

    /// What there is to wait for.
    pub(super) fn open(&self) -> impl Iterator<Item = (Stream, BorrowedFd<'_>)> {
        let stdout = self.stdout.as_ref().or(self.terminal.as_ref());
        let all = [(Stream::Stdout, stdout), (Stream::Stderr, self.stderr.as_ref())];
        all.into_iter().filter_map(|(stream, end)| end.map(|end| (stream, end.as_fd())))
    }

    /// Reads once and logs it. What was read; `None` where there is nothing now.
    pub(super) fn pass(&mut self, stream: Stream, now: Timestamp) -> Option<(&[u8], io::Result<()>)> {
        let end = match stream {
            Stream::Stdout => self.stdout.as_ref().or(self.terminal.as_ref())?,
            Stream::Stderr => self.stderr.as_ref()?,
        };
        let length = match rustix::io::read(end, &mut *self.buffer) {
            Ok(length) if length > 0 => length,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            // A terminal ends with an error when nobody has it open any more.
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

    /// Nothing more will come.
    pub(super) fn finish(&mut self, now: Timestamp) -> io::Result<()> {
        self.log.finish(now)
    }
}
