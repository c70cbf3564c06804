//! `supervise`: lives as long as its container. A single-threaded event loop without an async runtime, because there is
//! one such process per container.

mod children;
mod client;
mod helper;
mod output;
mod serve;

use std::{
    env,
    fs::{self, File},
    io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener},
    },
    path::Path,
    process::ExitCode,
    time::Duration,
};

use jiff::Timestamp;
use nix::{
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        stat::{Mode, umask},
    },
    unistd::setsid,
};
use rustix::process::{getpid, set_child_subreaper};
use tokio::time::Instant;
use vk_supervisor::Clock;

use self::{children::Children, client::Client, helper::Helper, output::Output};
use super::{
    Exit, Launch, Program, StartError, cgroup,
    create::{LAUNCH, RUNTIME},
    plain,
    state::{self, Written},
    verb::{complain, protected},
    wire::{self, Outcome},
};
use crate::{level::Level, sys};

const SOCKET: &str = "shim.sock";
/// Time limit for creating a container.
const CREATION: Duration = Duration::from_mins(2);
/// The OOM killer should prefer containers to their supervisors.
const SCORE: &str = "-998";
/// How long to read output after the container exited; nothing can write any more.
const DRAIN: Duration = Duration::from_secs(2);

/// Entry point of `supervise`.
pub(super) fn run(dir: &Path, program: Program) -> ExitCode {
    let started = begin(dir).and_then(|begun| match begun {
        Some((lock, launch)) => Supervisor::new(program, launch, lock).map(Some),
        None => Ok(None),
    });
    match started {
        Ok(Some(supervisor)) => supervisor.run(),
        Ok(None) => {
            say(&Outcome::Busy);
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&Outcome::Failed(StartError::new(format!("supervise {}: {error}", dir.display()))));
            ExitCode::FAILURE
        }
    }
}

/// Detaches from the process that started us. `None` if another supervisor is active.
fn begin(dir: &Path) -> io::Result<Option<(File, Launch)>> {
    sys::fd::close_all()?;
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    umask(Mode::from_bits_truncate(0o022));
    env::set_current_dir(dir)?;
    let here = Path::new(".");
    let Some(lock) = state::lock(here)? else { return Ok(None) };
    if state::before(here)?.is_some() {
        return Err(io::Error::other("the container has already been started"));
    }
    let launch: Launch = state::load(Path::new(LAUNCH))?.ok_or_else(|| io::Error::other("no launch.json"))?;
    if launch.level == Level::Oci {
        settle(&launch);
        // The container and its commands get a session keyring of their own, not that of the host's user.
        sys::process::leave_keyring();
    }
    Ok(Some((lock, launch)))
}

/// Moves this process into its own cgroup, so that it is not limited with the process that started it. Failures do not
/// prevent the start.
fn settle(launch: &Launch) {
    if let Some(path) = &launch.own_cgroup
        && let Err(error) = cgroup::enter(path)
    {
        complain(format_args!("the shim stays in its parent's cgroup: {error}"));
    }
    // Only if the container gets a score of its own. An unprivileged process keeps its score.
    if launch.oom_score_adj.is_some() {
        let _ = fs::write("/proc/self/oom_score_adj", SCORE);
    }
}

/// Reports the result to the process that started us, which may be gone.
fn say(outcome: &Outcome) {
    let _ = wire::tell(io::stdout(), outcome);
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// A container, its processes and its clients.
struct Supervisor {
    program: Program,
    /// The read-only file descriptor that `program` is executed from.
    _binary: Option<OwnedFd>,
    launch: Launch,
    clock: Clock,
    signals: SignalFd,
    listener: UnixListener,
    children: Children,
    clients: Vec<Client>,
    output: Output,
    /// The write end of the container's stdin, while it is open; `None` with a terminal.
    stdin: Option<OwnedFd>,
    pid: i32,
    /// Start time of the process, in clock ticks.
    ticks: Option<u64>,
    started: Timestamp,
    log_error: Option<String>,
    _lock: File,
}

/// The supervisor's ends of the container's stdio.
struct Ends {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl Supervisor {
    fn new(program: Program, launch: Launch, lock: File) -> io::Result<Self> {
        let clock = Clock::system();
        let started = clock.now();
        let mut mask = SigSet::empty();
        // At shutdown the host signals all processes. The supervisor must exit after its container.
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            mask.add(signal);
        }
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        state::write(Path::new("."), &Written::Starting { pid: None, ticks: None })?;
        let _ = fs::remove_file(SOCKET);
        let listener = UnixListener::bind(SOCKET)?;
        listener.set_nonblocking(true)?;
        let output = Output::new(&launch.log)?;
        let (program, binary) = match launch.level {
            Level::Oci => protected(program),
            Level::Process => (program, None),
        };
        Ok(Self {
            program,
            _binary: binary,
            launch,
            clock,
            signals,
            listener,
            children: Children::default(),
            clients: Vec::new(),
            output,
            stdin: None,
            pid: 0,
            ticks: None,
            started,
            log_error: None,
            _lock: lock,
        })
    }

    fn run(mut self) -> ExitCode {
        let code = match self.create() {
            Ok(()) => {
                self.note();
                say(&Outcome::Started);
                self.serve()
            }
            Err(words) => {
                self.clear();
                let error = StartError::new(words);
                let exit = Exit::not_started(&error, self.clock.now());
                self.conclude(&exit);
                say(&Outcome::Failed(error));
                return ExitCode::SUCCESS;
            }
        };
        self.end(code);
        ExitCode::SUCCESS
    }

    /// Creates and starts the container. Errors have the texts of other runtimes.
    fn create(&mut self) -> Result<(), String> {
        let said =
            |words: &str| format!("failed to create container: unable to start container process: {words}");
        let (mut helper, ends) = self.spawn_create().map_err(|error| said(&error.to_string()))?;
        self.await_helper(&mut helper).map_err(|words| said(&words))?;
        let pid = helper.pid().ok_or_else(|| said("no process was started"))?;
        if let Some(console) = helper.console() {
            let terminal = console.and_then(Output::ready).map_err(|error| said(&error.to_string()))?;
            self.output.terminal(terminal);
        }
        self.output.pipes(ends.stdout, ends.stderr);
        self.stdin = ends.stdin;
        self.pid = pid;
        self.ticks = plain::start_ticks_of(pid);
        self.children.watch(pid);
        self.started = self.clock.now();
        for detail in helper.details() {
            complain(format_args!("{} {detail}", self.started));
        }
        Ok(())
    }

    fn spawn_create(&mut self) -> io::Result<(Helper, Ends)> {
        if self.launch.tty {
            let ends = Ends { stdin: None, stdout: None, stderr: None };
            return Ok((Helper::terminal(&self.program, "create", None, 0)?, ends));
        }
        let (stdin, ours) = helper::input(self.launch.stdin)?;
        let (stdout_ours, stdout) = helper::output(true)?;
        let (stderr_ours, stderr) = helper::output(true)?;
        let helper = Helper::piped(&self.program, "create", None, 0, [&stdin, &stdout, &stderr])?;
        Ok((helper, Ends { stdin: ours, stdout: stdout_ours, stderr: stderr_ours }))
    }

    /// Waits until a helper has finished. The container may have exited by then.
    fn await_helper(&mut self, helper: &mut Helper) -> Result<(), String> {
        let until = Instant::now() + CREATION;
        self.children.expect(helper.process());
        loop {
            self.children.reap();
            if helper.read() && self.children.finished(helper) {
                break;
            }
            if Instant::now() > until || self.children.ended(helper.process()).is_some_and(|code| code != 0) {
                // The container it created would wait forever for its start.
                self.kill_all(Some(helper.process()));
            }
            helper::wait(&[(&self.signals).into(), (&*helper).into()], Duration::from_secs(1));
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
        let failed = self.children.forget(helper);
        helper.error(failed).map_or(Ok(()), Err)
    }

    /// Kills everything that is left of the container.
    fn kill_all(&mut self, helper: Option<i32>) {
        if let Some(process) = helper {
            children::kill(process);
        }
        if let Some(path) = &self.launch.cgroup
            && self.launch.level == Level::Oci
            && let Err(error) = cgroup::kill(path)
        {
            complain(format_args!("{} {error}", self.clock.now()));
        }
        self.children.kill_all();
    }

    /// Cleans up after the container exited: no process is left, and all output is logged.
    fn end(&mut self, code: i32) {
        let oom = self.launch.cgroup.as_deref().is_some_and(|path| cgroup::oom_kills(path) > 0);
        let finished = self.clock.now();
        self.kill_all(None);
        self.drain(DRAIN);
        if let Err(error) = self.output.finish(self.clock.now()) {
            complain(format_args!("{} write the log: {error}", self.clock.now()));
        }
        self.clear();
        self.conclude(&Exit::ended(self.started, finished, code, oom));
        self.dismiss(code);
    }

    /// Removes what was created for the container.
    fn clear(&mut self) {
        self.kill_all(None);
        if self.launch.level == Level::Oci {
            if let Some(path) = &self.launch.cgroup
                && let Err(error) = cgroup::remove(path)
            {
                complain(format_args!("{} remove cgroup {path}: {error}", self.clock.now()));
            }
            let _ = fs::remove_dir_all(RUNTIME);
        }
    }

    fn conclude(&self, exit: &Exit) {
        if let Err(error) = state::write(Path::new("."), &Written::Exited(exit.clone())) {
            complain(format_args!("{} write the exit: {error}", self.clock.now()));
        }
        let _ = fs::remove_file(SOCKET);
        self.announce();
    }

    /// Records that the container runs.
    fn note(&self) {
        let running = Written::Running {
            pid: self.pid,
            ticks: self.ticks,
            started: self.started,
            log_error: self.log_error.clone(),
        };
        if let Err(error) = state::write(Path::new("."), &running) {
            complain(format_args!("{} write the state: {error}", self.clock.now()));
        }
        self.announce();
    }

    /// Sends an event that the container changed. Nothing may be listening.
    fn announce(&self) {
        let send = || -> io::Result<()> {
            let (Some(parent), Some(name)) = (self.launch.events.parent(), self.launch.events.file_name())
            else {
                return Ok(());
            };
            let folder = File::open(parent)?;
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to(self.launch.pod_uid.as_bytes(), super::client::beside(&folder, name))?;
            Ok(())
        };
        let _ = send();
    }
}
