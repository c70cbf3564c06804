//! The event loop of a supervisor: output, requests and exits while the container runs.

use std::{
    fmt::Write as _,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use rand::RngExt as _;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::time::Instant;

use super::{
    ContainerSupervisor, children,
    connection::{Connection, ConnectionState, Received},
    helper::{self, Helper, timespec},
};
use crate::{
    shim::{
        log::Stream,
        protocol::{PassedFds, ShimReply, ShimRequest, Streams},
    },
    sys,
};

/// Time limit for starting a command.
const STARTING: Duration = Duration::from_mins(2);

/// An event source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventSource {
    Signals,
    Listener,
    Output(Stream),
    Connection(usize),
    /// The helper of a client.
    Helper(usize),
}

impl ContainerSupervisor {
    /// Runs until the container's first process has exited; returns its exit code.
    pub(super) fn serve(&mut self) -> i32 {
        loop {
            self.children.reap();
            if let Some(code) = self.children.exit_code(self.pid) {
                return code;
            }
            self.poll_once(None);
        }
    }

    /// Reads the output to its end, or until the limit.
    pub(super) fn drain(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.output.open_ends().next().is_none() || left.is_zero() {
                return;
            }
            self.poll_once(Some(left));
        }
    }

    /// Tells all clients that the container has exited.
    pub(super) fn notify_exit(&mut self, code: i32) {
        self.children.reap();
        self.advance_execs();
        for client in self.clients.drain(..) {
            match client.state {
                ConnectionState::Attached { .. } => client.send(&ShimReply::Ended(code)),
                ConnectionState::Running { .. } => {
                    client.send(&ShimReply::Ended(128 + rustix::process::Signal::KILL.as_raw()));
                }
                ConnectionState::Starting { .. } => {
                    client.send(&ShimReply::Failed("the container has exited".to_owned()));
                }
                ConnectionState::New | ConnectionState::Waiting | ConnectionState::Done => {}
            }
        }
    }

    /// Waits for events once, and handles them.
    pub(super) fn poll_once(&mut self, limit: Option<Duration>) {
        for source in self.wait_for_events(limit) {
            match source {
                EventSource::Signals => {
                    while let Ok(Some(_)) = self.signals.read_signal() {}
                    self.children.reap();
                }
                EventSource::Listener => {
                    while let Ok((socket, _)) = self.listener.accept() {
                        self.clients.extend(Connection::new(socket));
                    }
                }
                EventSource::Output(stream) => self.forward_output(stream),
                EventSource::Connection(index) => self.handle_readable(index),
                EventSource::Helper(index) => {
                    if let ConnectionState::Starting { helper, .. } = &mut self.clients[index].state {
                        helper.read();
                    }
                }
            }
        }
        self.advance_execs();
        self.clients.retain(|client| !matches!(client.state, ConnectionState::Done));
    }

    fn wait_for_events(&self, limit: Option<Duration>) -> Vec<EventSource> {
        let mut sources = vec![EventSource::Signals, EventSource::Listener];
        let mut fds = vec![self.signals.as_fd(), self.listener.as_fd()];
        for (stream, end) in self.output.open_ends() {
            sources.push(EventSource::Output(stream));
            fds.push(end);
        }
        for (index, client) in self.clients.iter().enumerate() {
            // A disconnected client would be readable forever.
            if !matches!(client.state, ConnectionState::Starting { gone: true, .. }) {
                sources.push(EventSource::Connection(index));
                fds.push(client.as_fd());
            }
            if let ConnectionState::Starting { helper, .. } = &client.state {
                sources.push(EventSource::Helper(index));
                fds.push(helper.as_fd());
            }
        }
        let mut fds: Vec<PollFd<'_>> =
            fds.into_iter().map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = self.clients.iter().filter_map(|client| match client.state {
            ConnectionState::Starting { until, .. } => Some(until?.saturating_duration_since(Instant::now())),
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

    fn forward_output(&mut self, stream: Stream) {
        let Some((bytes, logged)) = self.output.read_and_log(stream, self.clock.now()) else { return };
        for client in &mut self.clients {
            client.copy(stream, bytes);
        }
        if let Err(error) = logged
            && self.log_error.is_none()
        {
            self.log_error = Some(error.to_string());
            self.save_running();
        }
    }

    fn handle_readable(&mut self, index: usize) {
        let client = &mut self.clients[index];
        match (client.read_request(), &mut client.state) {
            (Received::Request(request), ConnectionState::New) => self.handle_request(index, request),
            (
                Received::Request(ShimRequest::InputEnded) | Received::Gone,
                ConnectionState::Attached { stdin, .. },
            ) => {
                if std::mem::take(stdin) && self.launch.stdin_once {
                    self.stdin = None;
                }
                // A client that only closed its input still reads output.
                if matches!(client.read_request(), Received::Gone) {
                    client.state = ConnectionState::Done;
                }
            }
            (Received::Nothing | Received::Request(_), _) => {}
            (Received::Gone, ConnectionState::Running { pid }) => {
                children::kill_session(*pid);
                self.children.unwatch(*pid);
                client.state = ConnectionState::Done;
            }
            (Received::Gone, ConnectionState::Starting { helper, gone, .. }) => {
                *gone = true;
                // The helper may be blocked by something in the container.
                helper.give_up("the client disconnected");
                self.children.kill(helper);
            }
            (Received::Gone, _) => client.state = ConnectionState::Done,
        }
    }

    fn handle_request(&mut self, index: usize, request: ShimRequest) {
        let state = match request {
            ShimRequest::Wait => ConnectionState::Waiting,
            ShimRequest::Signal(number) => self.reply(index, self.signal(number)),
            ShimRequest::ReopenLog => {
                let reopened = self.output.log.reopen().map_err(|error| error.to_string());
                if reopened.is_ok() && self.log_error.take().is_some() {
                    self.save_running();
                }
                self.reply(index, reopened)
            }
            ShimRequest::Exec { command, streams } => match self.exec(command, streams) {
                Ok(state) => state,
                Err(error) => self.reply(index, Err(exec_failed(&error.to_string()))),
            },
            ShimRequest::Attach(streams) => {
                let client = &mut self.clients[index];
                match client.attach(streams, self.stdin.as_ref(), self.output.console()) {
                    Ok(()) => return,
                    Err(error) => self.reply(index, Err(format!("failed to attach to container: {error}"))),
                }
            }
            ShimRequest::InputEnded => ConnectionState::Done,
        };
        self.clients[index].state = state;
    }

    fn reply(&self, index: usize, done: Result<(), String>) -> ConnectionState {
        let reply = match done {
            Ok(()) => ShimReply::Done,
            Err(message) => ShimReply::Failed(message),
        };
        self.clients[index].send(&reply);
        ConnectionState::Done
    }

    fn signal(&self, number: i32) -> Result<(), String> {
        if self.exited {
            return Ok(());
        }
        match sys::process::signal(self.pid, number) {
            Ok(()) => Ok(()),
            // It has exited and was not reaped yet.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(()),
            Err(error) => Err(format!("signal {number}: {error}")),
        }
    }

    /// Starts a command.
    fn exec(&mut self, command: Vec<String>, streams: Streams) -> std::io::Result<ConnectionState> {
        if self.exited {
            return Err(std::io::Error::other("the container has exited"));
        }
        let mut given = PassedFds::default();
        let (helper, ends) = if streams.tty {
            given.terminal = true;
            (Helper::terminal(&self.program, &self.process, "exec", Some(command), self.pid)?, Vec::new())
        } else {
            let (stdin, stdin_ours) = helper::input(streams.stdin)?;
            let (stdout_ours, stdout) = helper::output(streams.stdout)?;
            let (stderr_ours, stderr) = helper::output(streams.stderr)?;
            given.stdin = stdin_ours.is_some();
            given.stdout = stdout_ours.is_some();
            given.stderr = stderr_ours.is_some();
            let pipes = [&stdin, &stdout, &stderr];
            let helper = Helper::piped(&self.program, &self.process, "exec", Some(command), self.pid, pipes)?;
            (helper, [stdin_ours, stdout_ours, stderr_ours].into_iter().flatten().collect())
        };
        self.children.add_helper(helper.process());
        let until = Some(Instant::now() + STARTING);
        Ok(ConnectionState::Starting { helper: Box::new(helper), given, ends, until, gone: false })
    }

    /// Updates the clients whose commands have started or exited.
    fn advance_execs(&mut self) {
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            if let ConnectionState::Starting { helper, until, .. } = &mut client.state {
                if until.is_some_and(|until| Instant::now() >= until) {
                    *until = None;
                    helper.give_up("the start timed out");
                    self.children.kill(helper);
                }
                if !helper.read() || !self.children.is_done(helper) {
                    continue;
                }
                let state = std::mem::replace(&mut client.state, ConnectionState::Done);
                if let ConnectionState::Starting { helper, given, ends, gone, .. } = state {
                    let state = self.exec_started(index, &helper, given, ends, gone);
                    self.clients[index].state = state;
                }
            }
            let client = &mut self.clients[index];
            if let ConnectionState::Running { pid } = client.state
                && let Some(code) = self.children.exit_code(pid)
            {
                self.children.unwatch(pid);
                client.send(&ShimReply::Ended(code));
                client.state = ConnectionState::Done;
            }
        }
    }

    /// Handles a finished helper.
    fn exec_started(
        &mut self,
        index: usize,
        helper: &Helper,
        given: PassedFds,
        mut ends: Vec<OwnedFd>,
        gone: bool,
    ) -> ConnectionState {
        if let Some(pid) = helper.pid() {
            self.children.watch(pid);
        }
        let failed = self.children.finish_helper(helper);
        let pid = match (helper.error(failed), helper.pid()) {
            (None, Some(pid)) => pid,
            (error, pid) => {
                if let Some(pid) = pid {
                    self.children.unwatch(pid);
                }
                return self.reply(index, Err(exec_failed(&error.unwrap_or_default())));
            }
        };
        let received = match helper.console() {
            Some(Ok(terminal)) => {
                ends.push(terminal);
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Ok(()),
        };
        let ends: Vec<BorrowedFd<'_>> = ends.iter().map(OwnedFd::as_fd).collect();
        if gone || received.and_then(|()| self.clients[index].send_fds(given, &ends)).is_err() {
            children::kill_session(pid);
            self.children.unwatch(pid);
            return ConnectionState::Done;
        }
        ConnectionState::Running { pid }
    }
}

/// The text of containerd, with a random exec id as it has one.
fn exec_failed(message: &str) -> String {
    let mut id = String::new();
    for byte in rand::rng().random::<[u8; 32]>() {
        let _ = write!(id, "{byte:02x}");
    }
    format!(
        "failed to exec in container: failed to start exec \"{id}\": OCI runtime exec failed: exec failed: \
         unable to start container process: {message}: unknown"
    )
}
