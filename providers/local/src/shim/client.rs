//! The nodes' side: starts supervisors and asks them.

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
    Exit, Launch, Program, StartError, State,
    create::LAUNCH,
    session::{self, Kept},
    state::{self, Written},
    wire::{self, Outcome, Reply, Request, Streams},
};

const SOCKET: &str = "shim.sock";
/// How long a supervisor may take to answer. It may be held up by a slow disk.
const ANSWER: Duration = Duration::from_mins(1);
/// How long a start by somebody else is waited for.
const JOINED: Duration = Duration::from_mins(3);
/// What is kept of the output of a command that nobody watches.
const CAPTURED: usize = 1024 * 1024;

/// The processes beside a container, by its directory. Holds nothing open.
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

    /// Starts the container, with a supervisor that lives on when this process ends. Where one is at it already, this is its start too.
    pub async fn start(&self, program: &Program, launch: &Launch) -> Result<(), StartError> {
        let failed = |error: io::Error| {
            StartError::new(format!("start the supervisor of {}: {error}", self.dir.display()))
        };
        match self.outcome(program, launch).await.map_err(failed)? {
            Some(Outcome::Started) => Ok(()),
            Some(Outcome::Failed(error)) => Err(error),
            // It said nothing, or another one works.
            Some(Outcome::Busy) | None => self.joined().await,
        }
    }

    async fn outcome(&self, program: &Program, launch: &Launch) -> io::Result<Option<Outcome>> {
        if state::before(&self.dir)?.is_none() {
            state::save(&self.dir.join(LAUNCH), launch)?;
        }
        let complaints = self.dir.join("shim.err");
        let complaints = OpenOptions::new().create(true).append(true).mode(0o600).open(complaints)?;
        let mut child = Command::new(&program.path)
            .arg0("virtual-kubelet-shim")
            .args(&program.args)
            .arg("supervise")
            .arg(&self.dir)
            // Our own environment may hold secrets, and is none of a container's.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        Ok(serde_json::from_str(&line).ok())
    }

    /// How the start that somebody else began comes out.
    async fn joined(&self) -> Result<(), StartError> {
        let until = Instant::now() + JOINED;
        loop {
            let state = self.state().map_err(|error| StartError::new(error.to_string()))?;
            match state {
                State::Running { .. } => return Ok(()),
                State::Exited(exit) if exit.started.is_some() => return Ok(()),
                State::Exited(Exit { code, reason, message, .. }) => {
                    return Err(StartError { code, reason, message });
                }
                State::Lost { .. } => {
                    return Err(StartError::new("the supervisor of the container was killed"));
                }
                State::Created if Instant::now() > until => {
                    return Err(StartError::new("the start of the container takes too long"));
                }
                State::Created => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Where the container stands: two small files are looked at.
    pub fn state(&self) -> io::Result<State> {
        state::read(&self.dir)
    }

    /// When the kernel started the container's first process, in its ticks since the machine's start; `None` where that is not known.
    /// A process with the number that [`State`] tells and another time is not the container's.
    pub fn start_ticks(&self) -> io::Result<Option<u64>> {
        state::ticks(&self.dir)
    }

    /// Sends a signal to the container's first process. One that has ended needs none.
    pub async fn signal(&self, signal: i32) -> io::Result<()> {
        self.ask(&Request::Signal(signal)).await
    }

    /// Lets the supervisor write the log into a new file of the same name. One that has ended writes none.
    pub async fn reopen_log(&self) -> io::Result<()> {
        self.ask(&Request::ReopenLog).await
    }

    /// The state when the container has ended, or the one that it has when the time is over.
    pub async fn wait(&self, until: Instant) -> io::Result<State> {
        let ended = async {
            let Some(mut socket) = self.connect(&Request::Wait).await? else { return Ok(()) };
            // Nothing is said: the end of the connection is the answer.
            socket.read_to_end(&mut Vec::new()).await.map(drop)
        };
        if let Ok(Err(error)) = timeout_at(until, ended).await
            && error.kind() != io::ErrorKind::ConnectionReset
        {
            return Err(error);
        }
        // The last word is written before the connection ends, and the lock goes a moment later.
        while let State::Running { .. } | State::Created = self.state()? {
            if Instant::now() >= until {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        self.state()
    }

    /// Writes how a container ended whose supervisor could not; for whoever has killed what was left of it.
    pub fn conclude(&self, exit: &Exit) -> io::Result<()> {
        state::write(&self.dir, &Written::Exited(exit.clone()))
    }

    /// Starts a command in the container. It is killed when the session is dropped.
    pub async fn exec(&self, command: &[String], options: &ExecOptions) -> Result<Session> {
        let streams = streams(*options);
        self.begin(&Request::Exec { command: command.to_vec(), streams }, streams, Kept::Nothing).await
    }

    /// Attaches to the container's own program, which goes on when the session is dropped.
    pub async fn attach(&self, options: &AttachOptions) -> Result<Session> {
        let streams = streams(*options);
        self.begin(&Request::Attach(streams), streams, Kept::Input).await
    }

    /// Runs a command in the container and waits for it; a limit of zero is none.
    pub async fn run(&self, command: &[String], limit: Duration) -> Result<ExecOutput> {
        let options = ExecOptions { stdout: true, stderr: true, ..ExecOptions::default() };
        let running = async {
            let Session { stdout, stderr, exit, .. } = self.exec(command, &options).await?;
            let (exit, mut output, errors) =
                tokio::join!(exit, session::captured(stdout, CAPTURED), session::captured(stderr, CAPTURED));
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

    async fn begin(&self, request: &Request, streams: Streams, kept: Kept) -> Result<Session> {
        let unavailable = |error: io::Error| {
            Error::unavailable("ask the container's supervisor for a session").caused_by(error)
        };
        let gone = || Error::unavailable("container is not running");
        let socket = self.connect(request).await.map_err(unavailable)?.ok_or_else(gone)?;
        let begun = timeout(ANSWER, session::begun(&socket));
        let (reply, fds, rest) =
            begun.await.map_err(|over| unavailable(over.into()))?.map_err(unavailable)?;
        match reply {
            Some(Reply::Begun(given)) => {
                session::open(socket, given, fds, rest, streams, kept).map_err(unavailable)
            }
            Some(Reply::Failed(words)) => Err(Error::invalid(words)),
            Some(_) | None => Err(gone()),
        }
    }

    async fn ask(&self, request: &Request) -> io::Result<()> {
        let Some(socket) = self.connect(request).await? else { return Ok(()) };
        let (reply, ..) = timeout(ANSWER, session::begun(&socket)).await??;
        match reply {
            Some(Reply::Failed(words)) => Err(io::Error::other(words)),
            // An end of the connection is the end of the container.
            _ => Ok(()),
        }
    }

    /// A connection on which this was said; `None` where there is no supervisor any more.
    async fn connect(&self, request: &Request) -> io::Result<Option<UnixStream>> {
        let folder = File::open(&self.dir)?;
        let mut socket = match UnixStream::connect(beside(&folder, OsStr::new(SOCKET))).await {
            Ok(socket) => socket,
            Err(error) => {
                let none = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
                return if none.contains(&error.kind()) { Ok(None) } else { Err(error) };
            }
        };
        match socket.write_all(&wire::line(request)).await {
            Ok(()) => Ok(Some(socket)),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A name in an open directory, short enough for the address of a socket however long the directory's own name is.
pub(super) fn beside(folder: &File, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
}

fn streams(options: ExecOptions) -> Streams {
    let ExecOptions { stdin, stdout, stderr, tty } = options;
    Streams { stdin, stdout, stderr: stderr && !tty, tty }
}
