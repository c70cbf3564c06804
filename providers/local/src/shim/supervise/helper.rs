//! Helpers at work: `create` and `exec`.

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
    Program, console,
    wire::{self, Order, Report},
};

/// A helper, and what it has said so far.
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
    /// For a program with a terminal.
    pub(super) fn terminal(
        program: &Program,
        verb: &str,
        command: Option<Vec<String>>,
        init: i32,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let theirs = rustix::io::dup(theirs)?;
        let order = Order {
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

    /// For a program with pipes.
    pub(super) fn piped(
        program: &Program,
        verb: &str,
        command: Option<Vec<String>>,
        init: i32,
        [stdin, stdout, stderr]: [&OwnedFd; 3],
    ) -> io::Result<Self> {
        // Copies without the flag that closes them: only the next process that is started gets them.
        let [stdin, stdout, stderr] =
            [rustix::io::dup(stdin)?, rustix::io::dup(stdout)?, rustix::io::dup(stderr)?];
        let order = Order {
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
        mut order: Order,
        console: Option<UnixStream>,
    ) -> io::Result<Self> {
        let (report, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        nonblocking(&report)?;
        let theirs = rustix::io::dup(theirs)?;
        order.report = theirs.as_raw_fd();
        let child = Command::new(&program.path)
            .arg0("virtual-kubelet-shim")
            .args(&program.args)
            .args([verb, "."])
            .stdin(Stdio::from(wire::sealed(&order)?))
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

    /// The helper itself.
    pub(super) fn process(&self) -> i32 {
        self.process
    }

    /// The process that it has started.
    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// It is ended because of this, unless it said something itself, which is nearer to the cause.
    pub(super) fn give_up(&mut self, why: &str) {
        self.read();
        self.error.get_or_insert_with(|| why.to_owned());
    }

    pub(super) fn details(&self) -> &[String] {
        &self.details
    }

    /// Reads what it says. Whether it has said all.
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
        while let Some(report) = wire::take_line::<Report>(&mut self.text) {
            match report {
                Ok(Report::Pid(pid)) => self.pid = Some(pid),
                Ok(Report::Error(words)) => {
                    self.error.get_or_insert(words);
                }
                Ok(Report::Detail(words)) => self.details.push(words),
                Err(error) => self.details.push(error.to_string()),
            }
        }
        self.closed
    }

    /// Why it failed, where it did.
    pub(super) fn error(&self, failed: bool) -> Option<String> {
        let error = match &self.error {
            Some(error) => error.clone(),
            None if failed || self.pid.is_none() => "the process that starts it was killed".to_owned(),
            None => return None,
        };
        // What happened first is nearest to the cause.
        Some(match self.details.first() {
            Some(detail) if !error.starts_with("exec: ") => format!("{error}: {detail}"),
            _ => error,
        })
    }

    /// The terminal that it has sent; `None` where it was not to have one.
    pub(super) fn console(&self) -> Option<io::Result<OwnedFd>> {
        self.console.as_ref().map(console::received)
    }
}

impl AsFd for Helper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }
}

/// Something to wait for.
pub(super) struct Awaited<'a>(BorrowedFd<'a>);

impl<'a, T: AsFd> From<&'a T> for Awaited<'a> {
    fn from(descriptor: &'a T) -> Self {
        Self(descriptor.as_fd())
    }
}

/// Until one of these can be read, or the time is over.
pub(super) fn wait(awaited: &[Awaited<'_>], limit: Duration) {
    let mut fds: Vec<PollFd<'_>> =
        awaited.iter().map(|awaited| PollFd::from_borrowed_fd(awaited.0, PollFlags::IN)).collect();
    // Interrupted is as good as awake.
    let _ = poll(&mut fds, timespec(limit).as_ref());
}

pub(super) fn timespec(limit: Duration) -> Option<Timespec> {
    Timespec::try_from(limit).ok()
}

pub(super) fn nonblocking(descriptor: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(descriptor)?;
    Ok(rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NONBLOCK)?)
}

/// Input of a program: its end, and ours where there is input.
pub(super) fn input(wanted: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if !wanted {
        return Ok((null()?, None));
    }
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    nonblocking(&ours)?;
    Ok((theirs, Some(ours)))
}

/// Output of a program: our end where it is wanted, and its own.
pub(super) fn output(wanted: bool) -> io::Result<(Option<OwnedFd>, OwnedFd)> {
    if !wanted {
        return Ok((None, null()?));
    }
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    nonblocking(&ours)?;
    Ok((Some(ours), theirs))
}

fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
