//! Running helpers: `create` and `exec`.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    pipe::{PipeFlags, pipe_with},
};

use crate::shim::{
    ContainerProcess, Program, console,
    protocol::{self, HelperReport, HelperRequest},
};

/// A helper process, and what it has reported so far.
#[derive(Debug)]
pub(super) struct Helper {
    process: i32,
    report: OwnedFd,
    console: Option<UnixStream>,
    text: Vec<u8>,
    pid: Option<i32>,
    error: Option<String>,
    details: Vec<String>,
    closed: bool,
}

impl Helper {
    /// Starts a helper for a program with a terminal.
    pub(super) fn terminal(
        program: &Program,
        process: &ContainerProcess,
        verb: &str,
        command: Option<Vec<String>>,
        init: i32,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let theirs = rustix::io::dup(theirs)?;
        let order = HelperRequest {
            process: process.clone(),
            command,
            init,
            tty: true,
            stdin: None,
            stdout: None,
            stderr: None,
            report: 0,
            console: Some(theirs.as_raw_fd()),
        };
        Self::spawn(program, verb, order, Some(ours))
    }

    /// Starts a helper for a program with pipes.
    pub(super) fn piped(
        program: &Program,
        process: &ContainerProcess,
        verb: &str,
        command: Option<Vec<String>>,
        init: i32,
        [stdin, stdout, stderr]: [&OwnedFd; 3],
    ) -> io::Result<Self> {
        // Duplicates without CLOEXEC; they are only open until the helper is spawned.
        let [stdin, stdout, stderr] =
            [rustix::io::dup(stdin)?, rustix::io::dup(stdout)?, rustix::io::dup(stderr)?];
        let order = HelperRequest {
            process: process.clone(),
            command,
            init,
            tty: false,
            stdin: Some(stdin.as_raw_fd()),
            stdout: Some(stdout.as_raw_fd()),
            stderr: Some(stderr.as_raw_fd()),
            report: 0,
            console: None,
        };
        Self::spawn(program, verb, order, None)
    }

    fn spawn(
        program: &Program,
        verb: &str,
        mut order: HelperRequest,
        console: Option<UnixStream>,
    ) -> io::Result<Self> {
        let (report, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&report)?;
        let theirs = rustix::io::dup(theirs)?;
        order.report = theirs.as_raw_fd();
        let child = Command::new(&program.path)
            .arg0("virtual-kubelet-shim")
            .args(&program.args)
            .args([verb, "."])
            .stdin(Stdio::from(protocol::memfd_with(&order)?))
            .stdout(Stdio::null())
            .env_clear()
            .spawn()?;
        Ok(Self {
            process: child.id().cast_signed(),
            report,
            console,
            text: Vec::new(),
            pid: None,
            error: None,
            details: Vec::new(),
            closed: false,
        })
    }

    /// PID of the helper.
    pub(super) fn process(&self) -> i32 {
        self.process
    }

    /// PID of the process that it started.
    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Sets an error, unless the helper has reported one, which is closer to the cause.
    pub(super) fn give_up(&mut self, why: &str) {
        self.read();
        self.error.get_or_insert_with(|| why.to_owned());
    }

    pub(super) fn details(&self) -> &[String] {
        &self.details
    }

    /// Reads its reports. Returns whether it has closed the pipe.
    pub(super) fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        while !self.closed {
            match rustix::io::read(&self.report, &mut bytes) {
                Ok(0) => self.closed = true,
                Ok(length) => self.text.extend_from_slice(&bytes[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        while let Some(report) = protocol::take_line::<HelperReport>(&mut self.text) {
            match report {
                Ok(HelperReport::Pid(pid)) => self.pid = Some(pid),
                Ok(HelperReport::Error(message)) => {
                    self.error.get_or_insert(message);
                }
                Ok(HelperReport::Detail(message)) => self.details.push(message),
                Err(error) => self.details.push(error.to_string()),
            }
        }
        self.closed
    }

    /// The error, if it failed.
    pub(super) fn error(&self, failed: bool) -> Option<String> {
        let error = match &self.error {
            Some(error) => error.clone(),
            None if failed || self.pid.is_none() => "the helper process was killed".to_owned(),
            None => return None,
        };
        // The first detail is closest to the cause.
        Some(match self.details.first() {
            Some(detail) if !error.starts_with("exec: ") => format!("{error}: {detail}"),
            _ => error,
        })
    }

    /// The terminal that it sent; `None` if there is none.
    pub(super) fn console(&self) -> Option<io::Result<OwnedFd>> {
        self.console.as_ref().map(console::receive_terminal)
    }
}

impl AsFd for Helper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }
}

/// A descriptor to wait for.
pub(super) struct PollSource<'a>(BorrowedFd<'a>);

impl<'a, T: AsFd> From<&'a T> for PollSource<'a> {
    fn from(descriptor: &'a T) -> Self {
        Self(descriptor.as_fd())
    }
}

/// Waits until a descriptor is readable, or until the limit.
pub(super) fn wait(awaited: &[PollSource<'_>], limit: Duration) {
    let mut fds: Vec<PollFd<'_>> =
        awaited.iter().map(|awaited| PollFd::from_borrowed_fd(awaited.0, PollFlags::IN)).collect();
    // An interrupted wait is harmless.
    let _ = poll(&mut fds, timespec(limit).as_ref());
}

pub(super) fn timespec(limit: Duration) -> Option<Timespec> {
    Timespec::try_from(limit).ok()
}

pub(super) fn set_nonblocking(descriptor: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(descriptor)?;
    Ok(rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NONBLOCK)?)
}

/// Stdin of a program: its end, and ours if there is input.
pub(super) fn input(wanted: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if !wanted {
        return Ok((null()?, None));
    }
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    set_nonblocking(&ours)?;
    Ok((theirs, Some(ours)))
}

/// Stdout or stderr of a program: our end if it is wanted, and the program's.
pub(super) fn output(wanted: bool) -> io::Result<(Option<OwnedFd>, OwnedFd)> {
    if !wanted {
        return Ok((None, null()?));
    }
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    set_nonblocking(&ours)?;
    Ok((Some(ours), theirs))
}

fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
