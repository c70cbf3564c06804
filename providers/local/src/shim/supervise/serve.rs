//! The event loop of a supervisor: output, requests and exits while the container runs.

use std::{
    fmt::Write as _,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::libc;
use rand::RngExt as _;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::Instant;

use super::{
    Supervisor, children,
    client::{Client, Heard, Role},
    helper::{self, Helper, timespec},
};
use crate::{
    shim::{
        log::Stream,
        wire::{Given, Reply, Request, Streams},
    },
    sys,
};

/// Time limit for starting a command.
const STARTING: Duration = Duration::from_mins(2);

/// An event source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Signals,
    Connections,
    Output(Stream),
    Client(usize),
    /// The helper of a client.
    Helper(usize),
}

impl Supervisor {
    /// Runs until the container's first process has exited; returns its exit code.
    pub(super) fn serve(&mut self) -> i32 {
        loop {
            self.children.reap();
            if let Some(code) = self.children.ended(self.pid) {
                return code;
            }
            self.turn(None);
        }
    }

    /// Reads the output to its end, or until the limit.
    pub(super) fn drain(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.output.open().next().is_none() || left.is_zero() {
                return;
            }
            self.turn(Some(left));
        }
    }

    /// Tells all clients that the container has exited.
    pub(super) fn dismiss(&mut self, code: i32) {
        self.children.reap();
        self.settle();
        for client in self.clients.drain(..) {
            match client.role {
                Role::Attached { .. } => client.say(&Reply::Ended(code)),
                Role::Running { .. } => client.say(&Reply::Ended(128 + libc::SIGKILL)),
                Role::Starting { .. } => client.say(&Reply::Failed("the container has ended".to_owned())),
                Role::Asking | Role::Waiting | Role::Done => {}
            }
        }
    }

    /// Waits for events once, and handles them.
    fn turn(&mut self, limit: Option<Duration>) {
        for source in self.ready(limit) {
            match source {
                Source::Signals => {
                    while let Ok(Some(_)) = self.signals.read_signal() {}
                    self.children.reap();
                }
                Source::Connections => {
                    while let Ok((socket, _)) = self.listener.accept() {
                        self.clients.extend(Client::new(socket));
                    }
                }
                Source::Output(stream) => self.pass(stream),
                Source::Client(place) => self.hear(place),
                Source::Helper(place) => {
                    if let Role::Starting { helper, .. } = &mut self.clients[place].role {
                        helper.read();
                    }
                }
            }
        }
        self.settle();
        self.clients.retain(|client| !matches!(client.role, Role::Done));
    }

    fn ready(&self, limit: Option<Duration>) -> Vec<Source> {
        let mut sources = vec![Source::Signals, Source::Connections];
        let mut fds = vec![self.signals.as_fd(), self.listener.as_fd()];
        for (stream, end) in self.output.open() {
            sources.push(Source::Output(stream));
            fds.push(end);
        }
        for (place, client) in self.clients.iter().enumerate() {
            // A disconnected client would be readable forever.
            if !matches!(client.role, Role::Starting { gone: true, .. }) {
                sources.push(Source::Client(place));
                fds.push(client.as_fd());
            }
            if let Role::Starting { helper, .. } = &client.role {
                sources.push(Source::Helper(place));
                fds.push(helper.as_fd());
            }
        }
        let mut fds: Vec<PollFd<'_>> =
            fds.into_iter().map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = self.clients.iter().filter_map(|client| match client.role {
            Role::Starting { until, .. } => Some(until?.saturating_duration_since(Instant::now())),
            _ => None,
        });
        // One millisecond more, so that the deadline has passed when the poll returns.
        let limit = limit.into_iter().chain(left.map(|left| left + Duration::from_millis(1))).min();
        if poll(&mut fds, limit.and_then(timespec).as_ref()).is_err() {
            return Vec::new();
        }
        let sources = sources.into_iter().zip(&fds);
        sources.filter(|(_, fd)| !fd.revents().is_empty()).map(|(source, _)| source).collect()
    }

    fn pass(&mut self, stream: Stream) {
        let Some((bytes, logged)) = self.output.pass(stream, self.clock.now()) else { return };
        for client in &mut self.clients {
            client.copy(stream, bytes);
        }
        if let Err(error) = logged
            && self.log_error.is_none()
        {
            self.log_error = Some(error.to_string());
            self.note();
        }
    }

    fn hear(&mut self, place: usize) {
        let client = &mut self.clients[place];
        match (client.hear(), &mut client.role) {
            (Heard::Request(request), Role::Asking) => self.answer(place, request),
            (Heard::Request(Request::InputEnded) | Heard::Gone, Role::Attached { stdin, .. }) => {
                if std::mem::take(stdin) && self.launch.stdin_once {
                    self.stdin = None;
                }
                // A client that only closed its input still reads output.
                if matches!(client.hear(), Heard::Gone) {
                    client.role = Role::Done;
                }
            }
            (Heard::Nothing | Heard::Request(_), _) => {}
            (Heard::Gone, Role::Running { pid }) => {
                children::kill_session(*pid);
                self.children.release(*pid);
                client.role = Role::Done;
            }
            (Heard::Gone, Role::Starting { helper, gone, .. }) => {
                *gone = true;
                // The helper may be blocked by something in the container.
                helper.give_up("the client disconnected");
                self.children.kill(helper);
            }
            (Heard::Gone, _) => client.role = Role::Done,
        }
    }

    fn answer(&mut self, place: usize, request: Request) {
        let role = match request {
            Request::Wait => Role::Waiting,
            Request::Signal(number) => self.reply(place, self.signal(number)),
            Request::ReopenLog => {
                let reopened = self.output.log.reopen().map_err(|error| error.to_string());
                if reopened.is_ok() && self.log_error.take().is_some() {
                    self.note();
                }
                self.reply(place, reopened)
            }
            Request::Exec { command, streams } => match self.exec(command, streams) {
                Ok(role) => role,
                Err(error) => self.reply(place, Err(refused(&error.to_string()))),
            },
            Request::Attach(streams) => {
                let client = &mut self.clients[place];
                match client.attach(streams, self.stdin.as_ref(), self.output.console()) {
                    Ok(()) => return,
                    Err(error) => self.reply(place, Err(format!("failed to attach to container: {error}"))),
                }
            }
            Request::InputEnded => Role::Done,
        };
        self.clients[place].role = role;
    }

    fn reply(&self, place: usize, done: Result<(), String>) -> Role {
        let reply = match done {
            Ok(()) => Reply::Done,
            Err(words) => Reply::Failed(words),
        };
        self.clients[place].say(&reply);
        Role::Done
    }

    fn signal(&self, number: i32) -> Result<(), String> {
        match sys::process::signal(self.pid, number) {
            Ok(()) => Ok(()),
            // It has exited and was not reaped yet.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            Err(error) => Err(format!("signal {number}: {error}")),
        }
    }

    /// Starts a command.
    fn exec(&mut self, command: Vec<String>, streams: Streams) -> std::io::Result<Role> {
        let mut given = Given::default();
        let (helper, ends) = if streams.tty {
            given.terminal = true;
            (Helper::terminal(&self.program, "exec", Some(command), self.pid)?, Vec::new())
        } else {
            let (stdin, stdin_ours) = helper::input(streams.stdin)?;
            let (stdout_ours, stdout) = helper::output(streams.stdout)?;
            let (stderr_ours, stderr) = helper::output(streams.stderr)?;
            given.stdin = stdin_ours.is_some();
            given.stdout = stdout_ours.is_some();
            given.stderr = stderr_ours.is_some();
            let pipes = [&stdin, &stdout, &stderr];
            let helper = Helper::piped(&self.program, "exec", Some(command), self.pid, pipes)?;
            (helper, [stdin_ours, stdout_ours, stderr_ours].into_iter().flatten().collect())
        };
        self.children.expect(helper.process());
        let until = Some(Instant::now() + STARTING);
        Ok(Role::Starting { helper: Box::new(helper), given, ends, until, gone: false })
    }

    /// Updates the clients whose commands have started or exited.
    fn settle(&mut self) {
        for place in 0..self.clients.len() {
            let client = &mut self.clients[place];
            if let Role::Starting { helper, until, .. } = &mut client.role {
                if until.is_some_and(|until| Instant::now() >= until) {
                    *until = None;
                    helper.give_up("the start timed out");
                    self.children.kill(helper);
                }
                if !helper.read() || !self.children.finished(helper) {
                    continue;
                }
                let role = std::mem::replace(&mut client.role, Role::Done);
                if let Role::Starting { helper, given, ends, gone, .. } = role {
                    let role = self.started(place, &helper, given, ends, gone);
                    self.clients[place].role = role;
                }
            }
            let client = &mut self.clients[place];
            if let Role::Running { pid } = client.role
                && let Some(code) = self.children.ended(pid)
            {
                self.children.release(pid);
                client.say(&Reply::Ended(code));
                client.role = Role::Done;
            }
        }
    }

    /// Handles a finished helper.
    fn started(
        &mut self,
        place: usize,
        helper: &Helper,
        given: Given,
        mut ends: Vec<OwnedFd>,
        gone: bool,
    ) -> Role {
        if let Some(pid) = helper.pid() {
            self.children.watch(pid);
        }
        let failed = self.children.forget(helper);
        let pid = match (helper.error(failed), helper.pid()) {
            (None, Some(pid)) => pid,
            (error, pid) => {
                if let Some(pid) = pid {
                    self.children.release(pid);
                }
                return self.reply(place, Err(refused(&error.unwrap_or_default())));
            }
        };
        let begun = match helper.console() {
            Some(Ok(terminal)) => {
                ends.push(terminal);
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        let ends: Vec<BorrowedFd<'_>> = ends.iter().map(OwnedFd::as_fd).collect();
        if gone || begun.and_then(|()| self.clients[place].give(given, &ends)).is_err() {
            children::kill_session(pid);
            self.children.release(pid);
            return Role::Done;
        }
        Role::Running { pid }
    }
}

/// The text of containerd, with a random exec id as it has one.
fn refused(words: &str) -> String {
    let mut id = String::new();
    for byte in rand::rng().random::<[u8; 32]>() {
        let _ = write!(id, "{byte:02x}");
    }
    format!(
        "failed to exec in container: failed to start exec \"{id}\": OCI runtime exec failed: exec failed: \
         unable to start container process: {words}: unknown"
    )
}
