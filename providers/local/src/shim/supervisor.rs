//! `supervise`: lives as long as its container. A single-threaded event loop without an async runtime, because there is
//! one such process per container.

mod children;
mod connection;
mod event_loop;
mod helper;
mod output;

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
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    fs::Mode,
    process::{getpid, set_child_subreaper, setsid, umask},
};
use tokio::time::Instant;
use vk_supervisor::Clock;

use self::{children::Children, connection::Connection, helper::Helper, output::ContainerOutput};
use super::{
    ContainerExit, ContainerProcess, OOM_SCORE_ADJ, Program, ShimLaunch, StartError,
    create::{LAUNCH, RUNTIME},
    on_read_only_mount, print_error,
    protocol::{self, StartOutcome},
    state::{self, StateFile},
};
use crate::{cgroup::HostCgroups, files, isolation::Isolation, procfs, sys};

const SOCKET: &str = "shim.sock";
/// Time limit for creating a container.
const CREATE_LIMIT: Duration = Duration::from_mins(2);
/// How often an exit that could not be written is written again.
const SAVE_RETRY: Duration = Duration::from_secs(1);
/// How long to read output after the container exited; nothing can write any more.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Entry point of `supervise`.
pub(super) fn run(dir: &Path, program: Program) -> ExitCode {
    let started = initialize(dir).and_then(|initialized| match initialized {
        Some(initialized) => ContainerSupervisor::new(program, initialized).map(Some),
        None => Ok(None),
    });
    match started {
        Ok(Some(supervisor)) => supervisor.run(),
        Ok(None) => {
            print_outcome(&StartOutcome::Busy);
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_outcome(&StartOutcome::Failed(StartError::new(format!(
                "supervise {}: {error}",
                dir.display()
            ))));
            ExitCode::FAILURE
        }
    }
}

/// What a supervisor starts with.
struct Initialized {
    lock: File,
    launch: ShimLaunch,
    process: ContainerProcess,
}

/// Detaches from the process that started us. `None` if another supervisor is active, or was: the state says what became of the container.
fn initialize(dir: &Path) -> io::Result<Option<Initialized>> {
    sys::fd::close_inherited()?;
    let process = protocol::from_input()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    umask(Mode::from_raw_mode(0o022));
    env::set_current_dir(dir)?;
    let here = Path::new(".");
    let Some(lock) = state::lock(here)? else { return Ok(None) };
    if state::last_written(here)?.is_some() {
        return Ok(None);
    }
    let launch: ShimLaunch =
        files::read_json(Path::new(LAUNCH))?.ok_or_else(|| io::Error::other("no launch.json"))?;
    if launch.isolation == Isolation::Oci {
        leave_parent_cgroup(&launch);
        // The container and its commands get a session keyring of their own, not that of the host's user.
        sys::process::join_new_session_keyring();
    }
    Ok(Some(Initialized { lock, launch, process }))
}

/// Moves this process into its own cgroup, so that it is not limited with the process that started it. Failures do not
/// prevent the start.
fn leave_parent_cgroup(launch: &ShimLaunch) {
    if let Some(path) = &launch.own_cgroup
        && let Err(error) = HostCgroups::mounted().and_then(|cgroups| cgroups.enter(path))
    {
        print_error(format_args!("the shim stays in its parent's cgroup: {error}"));
    }
    // Only if the container gets a score of its own. An unprivileged process keeps its score.
    if launch.oom_score_adj.is_some() {
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    }
}

/// Reports the result to the process that started us, which may be gone.
fn print_outcome(outcome: &StartOutcome) {
    let _ = protocol::report_to(io::stdout(), outcome);
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// A container, its processes and its clients.
struct ContainerSupervisor {
    program: Program,
    /// The read-only file descriptor that `program` is executed from.
    _binary: Option<OwnedFd>,
    launch: ShimLaunch,
    process: ContainerProcess,
    clock: Clock,
    signals: SignalFd,
    listener: UnixListener,
    children: Children,
    clients: Vec<Connection>,
    output: ContainerOutput,
    /// The write end of the container's stdin, while it is open; `None` with a terminal.
    stdin: Option<OwnedFd>,
    pid: i32,
    /// It was reaped: its number may be another process' by now.
    exited: bool,
    /// Start time of the process, in clock ticks.
    ticks: Option<u64>,
    started: Timestamp,
    log_error: Option<String>,
    _lock: File,
}

/// The supervisor's ends of the container's stdio.
struct StdioEnds {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

impl ContainerSupervisor {
    fn new(program: Program, initialized: Initialized) -> io::Result<Self> {
        let Initialized { lock, launch, process } = initialized;
        let clock = Clock::system();
        let started = clock.now();
        let mut mask = SigSet::empty();
        // At shutdown the host signals all processes. The supervisor must exit after its container.
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            mask.add(signal);
        }
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        state::write(Path::new("."), &StateFile::Starting { pid: None, ticks: None })?;
        state::reserve(Path::new("."))?;
        let _ = fs::remove_file(SOCKET);
        let listener = UnixListener::bind(SOCKET)?;
        listener.set_nonblocking(true)?;
        let output = ContainerOutput::new(&launch.log)?;
        let (program, binary) = match launch.isolation {
            Isolation::Oci => on_read_only_mount(program),
            Isolation::Process => (program, None),
        };
        Ok(Self {
            program,
            _binary: binary,
            launch,
            process,
            clock,
            signals,
            listener,
            children: Children::default(),
            clients: Vec::new(),
            output,
            stdin: None,
            pid: 0,
            exited: false,
            ticks: None,
            started,
            log_error: None,
            _lock: lock,
        })
    }

    fn run(mut self) -> ExitCode {
        let code = match self.create() {
            Ok(()) => {
                self.save_running();
                print_outcome(&StartOutcome::Started);
                self.serve()
            }
            Err(message) => {
                self.clean_up();
                let error = StartError::new(message);
                let exit = ContainerExit::not_started(&error, self.clock.now());
                self.save_exit(&exit);
                print_outcome(&StartOutcome::Failed(error));
                return ExitCode::SUCCESS;
            }
        };
        self.finish(code);
        ExitCode::SUCCESS
    }

    /// Creates and starts the container. Errors have the texts of other runtimes.
    fn create(&mut self) -> Result<(), String> {
        let failed = |message: &str| {
            format!("failed to create container: unable to start container process: {message}")
        };
        let (mut helper, ends) = self.spawn_create().map_err(|error| failed(&error.to_string()))?;
        self.wait_for_helper(&mut helper).map_err(|message| failed(&message))?;
        let pid = helper.pid().ok_or_else(|| failed("no process was started"))?;
        if let Some(console) = helper.console() {
            let terminal =
                console.and_then(ContainerOutput::nonblocking).map_err(|error| failed(&error.to_string()))?;
            self.output.terminal(terminal);
        }
        self.output.pipes(ends.stdout, ends.stderr);
        self.stdin = ends.stdin;
        self.pid = pid;
        self.ticks = procfs::start_ticks(pid);
        self.children.watch(pid);
        self.started = self.clock.now();
        for detail in helper.details() {
            print_error(format_args!("{} {detail}", self.started));
        }
        Ok(())
    }

    fn spawn_create(&mut self) -> io::Result<(Helper, StdioEnds)> {
        if self.launch.tty {
            let ends = StdioEnds { stdin: None, stdout: None, stderr: None };
            return Ok((Helper::terminal(&self.program, &self.process, "create", None, 0)?, ends));
        }
        let (stdin, ours) = helper::input(self.launch.stdin)?;
        let (stdout_ours, stdout) = helper::output(true)?;
        let (stderr_ours, stderr) = helper::output(true)?;
        let pipes = [&stdin, &stdout, &stderr];
        let helper = Helper::piped(&self.program, &self.process, "create", None, 0, pipes)?;
        Ok((helper, StdioEnds { stdin: ours, stdout: stdout_ours, stderr: stderr_ours }))
    }

    /// Waits until a helper has finished. The container may have exited by then.
    fn wait_for_helper(&mut self, helper: &mut Helper) -> Result<(), String> {
        let until = Instant::now() + CREATE_LIMIT;
        self.children.add_helper(helper.process());
        loop {
            self.children.reap();
            if helper.read() && self.children.is_done(helper) {
                break;
            }
            if Instant::now() > until
                || self.children.exit_code(helper.process()).is_some_and(|code| code != 0)
            {
                // The container it created would wait forever for its start.
                self.kill_all(Some(helper.process()));
            }
            helper::wait(&[(&self.signals).into(), (&*helper).into()], Duration::from_secs(1));
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
        let failed = self.children.finish_helper(helper);
        helper.error(failed).map_or(Ok(()), Err)
    }

    /// Kills everything that is left of the container.
    fn kill_all(&mut self, helper: Option<i32>) {
        if let Some(process) = helper {
            children::kill(process);
        }
        if let Some(path) = &self.launch.cgroup
            && self.launch.isolation == Isolation::Oci
            && let Err(error) = HostCgroups::mounted().and_then(|cgroups| cgroups.kill(path))
        {
            print_error(format_args!("{} {error}", self.clock.now()));
        }
        self.children.kill_all();
    }

    /// Cleans up after the container exited: no process is left, and all output is logged.
    fn finish(&mut self, code: i32) {
        self.exited = true;
        let oom = self
            .launch
            .cgroup
            .as_deref()
            .is_some_and(|path| HostCgroups::mounted().is_ok_and(|cgroups| cgroups.oom_kills(path) > 0));
        let finished = self.clock.now();
        self.kill_all(None);
        self.drain(DRAIN_LIMIT);
        if let Err(error) = self.output.finish(self.clock.now()) {
            print_error(format_args!("{} write the log: {error}", self.clock.now()));
        }
        self.clean_up();
        self.save_exit(&ContainerExit::ended(self.started, finished, code, oom));
        self.notify_exit(code);
    }

    /// Removes what was created for the container.
    fn clean_up(&mut self) {
        self.kill_all(None);
        if self.launch.isolation == Isolation::Oci {
            if let Some(path) = &self.launch.cgroup
                && let Err(error) = HostCgroups::mounted().and_then(|cgroups| cgroups.remove(path))
            {
                print_error(format_args!("{} remove cgroup {path}: {error}", self.clock.now()));
            }
            let _ = fs::remove_dir_all(RUNTIME);
        }
    }

    /// Records the exit. Its space is reserved; if it cannot be written nevertheless, this process stays until it can:
    /// otherwise nobody would know the exit code.
    fn save_exit(&mut self, exit: &ContainerExit) {
        let exited = StateFile::Exited(exit.clone());
        let mut failed = false;
        while let Err(error) = state::write(Path::new("."), &exited) {
            if !std::mem::replace(&mut failed, true) {
                print_error(format_args!("{} write the exit: {error}", self.clock.now()));
            }
            // The directory is removed with a container that is removed by force.
            if matches!(error.kind(), io::ErrorKind::NotFound) {
                break;
            }
            self.poll_once(Some(SAVE_RETRY));
        }
        let _ = fs::remove_file(SOCKET);
        self.send_event();
    }

    /// Records that the container runs.
    fn save_running(&self) {
        let running = StateFile::Running {
            pid: self.pid,
            ticks: self.ticks,
            started: self.started,
            log_error: self.log_error.clone(),
        };
        if let Err(error) = state::write(Path::new("."), &running) {
            print_error(format_args!("{} write the state: {error}", self.clock.now()));
        }
        self.send_event();
    }

    /// Sends an event that the container changed. Nothing may be listening.
    fn send_event(&self) {
        let send = || -> io::Result<()> {
            let (Some(parent), Some(name)) = (self.launch.events.parent(), self.launch.events.file_name())
            else {
                return Ok(());
            };
            let folder = File::open(parent)?;
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to(self.launch.pod_uid.as_bytes(), super::client::path_in(&folder, name))?;
            Ok(())
        };
        let _ = send();
    }
}
