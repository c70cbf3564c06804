//! The provider's side: starts supervisors and sends requests to them.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    process::Command,
    time::{Instant, sleep, timeout, timeout_at},
};
use vk_pod_engine::backend::ExecOutput;
use vk_provider::{
    Error, Result,
    ability::{AttachOptions, ExecOptions, Session},
};

use super::{
    ContainerExit, ContainerProcess, Program, ShimLaunch, StartError, State,
    create::LAUNCH,
    protocol::{self, ShimReply, ShimRequest, StartOutcome, Streams},
    session::{self, StdinClose},
    state::{self, StateFile},
};
use crate::files;

const SOCKET: &str = "shim.sock";
/// Time limit of an answer; the supervisor may be delayed by a slow disk.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);
/// How long to wait for a start by another process.
const START_LIMIT: Duration = Duration::from_mins(3);
/// How much output of a probe command is kept.
const MAX_CAPTURE: usize = 1024 * 1024;

/// The shim of a container, identified by the container's directory. Holds no open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shim {
    dir: PathBuf,
}

impl Shim {
    /// The shim of the container that has this directory.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The container's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the container with a supervisor that outlives this process. If it is being started already, waits for
    /// that.
    pub async fn start(
        &self,
        program: &Program,
        launch: &ShimLaunch,
        process: &ContainerProcess,
    ) -> Result<(), StartError> {
        let failed =
            |error: io::Error| StartError::new(format!("start the shim of {}: {error}", self.dir.display()));
        match self.spawn_supervisor(program, launch, process).await.map_err(failed)? {
            Some(StartOutcome::Started) => Ok(()),
            Some(StartOutcome::Failed(error)) => Err(error),
            // No answer, or another supervisor is active.
            Some(StartOutcome::Busy) | None => self.wait_for_start().await,
        }
    }

    async fn spawn_supervisor(
        &self,
        program: &Program,
        launch: &ShimLaunch,
        process: &ContainerProcess,
    ) -> io::Result<Option<StartOutcome>> {
        if state::last_written(&self.dir)?.is_none() {
            files::write_json(&self.dir.join(LAUNCH), launch)?;
        }
        let complaints = self.dir.join("shim.err");
        let complaints = OpenOptions::new().create(true).append(true).mode(0o600).open(complaints)?;
        let mut child = Command::new(&program.path)
            .arg0("virtual-kubelet-shim")
            .args(&program.args)
            .arg("supervise")
            .arg(&self.dir)
            // Our environment may hold secrets, which are not for a container.
            .env_clear()
            .stdin(Stdio::from(protocol::memfd_with(process)?))
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        Ok(serde_json::from_str(&line).ok())
    }

    /// Waits for the result of a start by another process.
    async fn wait_for_start(&self) -> Result<(), StartError> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let state = self.state().map_err(|error| StartError::new(error.to_string()))?;
            match state {
                State::Running { .. } => return Ok(()),
                State::Exited(exit) if exit.started.is_some() => return Ok(()),
                State::Exited(ContainerExit { code, reason, message, .. }) => {
                    return Err(StartError { code, reason, message });
                }
                State::Lost { .. } => {
                    return Err(StartError::new("the shim of the container was killed"));
                }
                State::Created if Instant::now() > until => {
                    return Err(StartError::new("the start of the container timed out"));
                }
                State::Created => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// The state of the container, read from two small files.
    pub fn state(&self) -> io::Result<State> {
        state::read(&self.dir)
    }

    /// Whether the supervisor is alive.
    pub fn is_alive(&self) -> io::Result<bool> {
        state::is_supervised(&self.dir)
    }

    /// Start time of the container's first process in clock ticks since boot; `None` if unknown. A process with the PID
    /// in [`State`] and another start time is not the container's.
    pub fn start_ticks(&self) -> io::Result<Option<u64>> {
        state::ticks(&self.dir)
    }

    /// Sends a signal to the container's first process; does nothing if it has exited.
    pub async fn signal(&self, signal: i32) -> io::Result<()> {
        self.request(&ShimRequest::Signal(signal)).await
    }

    /// Makes the supervisor reopen the log file by name; does nothing if the container has exited.
    pub async fn reopen_log(&self) -> io::Result<()> {
        self.request(&ShimRequest::ReopenLog).await
    }

    /// Waits until the container has exited or `until` is reached, and returns its state.
    pub async fn wait(&self, until: Instant) -> io::Result<State> {
        let ended = async {
            let Some(mut socket) = self.connect(&ShimRequest::Wait).await? else { return Ok(()) };
            // Nothing is sent: the end of the connection is the answer.
            socket.read_to_end(&mut Vec::new()).await.map(drop)
        };
        if let Ok(Err(error)) = timeout_at(until, ended).await
            && error.kind() != io::ErrorKind::ConnectionReset
        {
            return Err(error);
        }
        // The exit is recorded before the connection closes; the lock is released a moment later.
        while let State::Running { .. } | State::Created = self.state()? {
            if Instant::now() >= until {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        self.state()
    }

    /// Records the exit of a container whose supervisor died, after its processes were killed.
    pub fn save_exit(&self, exit: &ContainerExit) -> io::Result<()> {
        state::write(&self.dir, &StateFile::Exited(exit.clone()))
    }

    /// Starts a command in the container. It is killed when the session is dropped.
    pub async fn exec(&self, command: &[String], options: &ExecOptions) -> Result<Session> {
        let streams = streams(*options);
        self.open_session(
            &ShimRequest::Exec { command: command.to_vec(), streams },
            streams,
            StdinClose::ByDrop,
        )
        .await
    }

    /// Attaches to the container's program, which keeps running when the session is dropped.
    pub async fn attach(&self, options: &AttachOptions) -> Result<Session> {
        let streams = streams(*options);
        self.open_session(&ShimRequest::Attach(streams), streams, StdinClose::ByMessage).await
    }

    /// Runs a command in the container and waits for it; a zero limit means no limit.
    pub async fn run(&self, command: &[String], limit: Duration) -> Result<ExecOutput> {
        let options = ExecOptions { stdout: true, stderr: true, ..ExecOptions::default() };
        let running = async {
            let Session { stdout, stderr, exit, .. } = self.exec(command, &options).await?;
            let (exit, mut output, errors) = tokio::join!(
                exit,
                session::capture(stdout, MAX_CAPTURE),
                session::capture(stderr, MAX_CAPTURE)
            );
            output.extend(errors);
            Ok(ExecOutput::Exited { code: exit?.code, output })
        };
        if limit.is_zero() {
            return running.await;
        }
        timeout(limit, running).await.unwrap_or_else(|_| {
            let command = command.join(" ");
            let message = format!("command timed out: {command:?} timed out after {limit:?}");
            Ok(ExecOutput::TimedOut { message })
        })
    }

    async fn open_session(
        &self,
        request: &ShimRequest,
        streams: Streams,
        stdin_close: StdinClose,
    ) -> Result<Session> {
        let unavailable = |error: io::Error| {
            Error::unavailable("request a session from the container's shim").caused_by(error)
        };
        let gone = || Error::unavailable("container is not running");
        let socket = self.connect(request).await.map_err(unavailable)?.ok_or_else(gone)?;
        let answer = timeout(ANSWER_LIMIT, session::read_reply(&socket));
        let (reply, fds, rest) =
            answer.await.map_err(|over| unavailable(over.into()))?.map_err(unavailable)?;
        match reply {
            Some(ShimReply::Begun(given)) => {
                session::open(socket, given, fds, rest, streams, stdin_close).map_err(unavailable)
            }
            Some(ShimReply::Failed(message)) => Err(Error::invalid(message)),
            Some(_) | None => Err(gone()),
        }
    }

    async fn request(&self, request: &ShimRequest) -> io::Result<()> {
        let Some(socket) = self.connect(request).await? else { return Ok(()) };
        let (reply, ..) = timeout(ANSWER_LIMIT, session::read_reply(&socket)).await??;
        match reply {
            Some(ShimReply::Failed(message)) => Err(io::Error::other(message)),
            // If the connection ends, the container has exited.
            _ => Ok(()),
        }
    }

    /// Connects and sends a request; `None` if there is no supervisor any more.
    async fn connect(&self, request: &ShimRequest) -> io::Result<Option<UnixStream>> {
        let folder = File::open(&self.dir)?;
        let mut socket = match UnixStream::connect(path_in(&folder, OsStr::new(SOCKET))).await {
            Ok(socket) => socket,
            Err(error) => {
                let none = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
                return if none.contains(&error.kind()) { Ok(None) } else { Err(error) };
            }
        };
        match socket.write_all(&protocol::line(request)).await {
            Ok(()) => Ok(Some(socket)),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The path of a file in an open directory, short enough for a socket address however long the directory's path is.
pub(super) fn path_in(folder: &File, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
}

fn streams(options: ExecOptions) -> Streams {
    let ExecOptions { stdin, stdout, stderr, tty } = options;
    Streams { stdin, stdout, stderr: stderr && !tty, tty }
}
