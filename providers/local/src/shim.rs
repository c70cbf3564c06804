//! The shim: a process that supervises each container, and short-lived helpers that create containers and start
//! commands in them.
//!
//! | process | purpose |
//! |---|---|
//! | `supervise DIR` | lives as long as its container: owns its stdio, writes its log, records its exit. One thread, no async runtime |
//! | `create DIR` | creates and starts the container, then exits; at level `process` it becomes the container's program |
//! | `exec DIR` | starts a command in the container, then exits |
//! | `pause DIR` | process 1 of a pod with a shared PID namespace |
//!
//! The provider's process only makes requests: [`Shim`] reads `state.json` and talks to the supervisor on `shim.sock`.
//! The provider can exit at any time and finds everything again.

mod client;
mod console;
mod create;
mod exec;
mod executor;
mod log;
mod pause_process;
mod protocol;
mod session;
mod state;
mod supervisor;

use std::{
    env, fmt,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::ExitCode,
};

use jiff::Timestamp;
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};

use crate::{isolation::Isolation, sys};

pub use self::{
    client::Shim,
    pause_process::{pause_process_pid, start_pause_process},
};

/// OOM score of supervisors and pause processes: the OOM killer should prefer containers.
const OOM_SCORE_ADJ: &str = "-998";

/// How to start a process of the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    /// Arguments before the subcommand.
    pub args: Vec<String>,
}

/// What a supervisor needs to know about its container, in addition to the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimLaunch {
    /// How the container is isolated.
    #[serde(rename = "level")]
    pub isolation: Isolation,
    /// The pod UID that is sent in events.
    pub pod_uid: String,
    /// The socket that receives events.
    pub events: PathBuf,
    /// The log file.
    pub log: PathBuf,
    /// Whether the container has a terminal.
    pub tty: bool,
    /// Whether the container has stdin.
    pub stdin: bool,
    /// Whether stdin is closed when the first attached client detaches.
    pub stdin_once: bool,
    /// OOM score adjustment.
    pub oom_score_adj: Option<i64>,
    /// The container's cgroup, relative to the mount of each controller.
    pub cgroup: Option<String>,
    /// The cgroup of the supervisor itself, relative to the mount of each controller; created if missing. `None` stays
    /// in the cgroup of the caller. Level `oci` only.
    #[serde(default)]
    pub own_cgroup: Option<String>,
    /// Whether to set `no_new_privs` at level `process`; otherwise the bundle has it.
    #[serde(default)]
    pub no_new_privs: bool,
    /// The working directory at level `process`; otherwise the bundle has it.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
}

/// The command line and the environment of a container. They may contain Secrets, so they are never written to a file:
/// the provider passes them to the supervisor in a memfd, and the supervisor keeps them in memory for later commands.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerProcess {
    /// Program and arguments.
    pub args: Vec<String>,
    /// The complete environment as `NAME=value`, in order.
    pub env: Vec<String>,
}

/// The state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started yet.
    Created,
    /// Running.
    Running {
        /// PID of its first process.
        pid: i32,
        /// Start time.
        started: Timestamp,
    },
    /// Exited, or failed to start.
    Exited(ContainerExit),
    /// The supervisor died without recording an exit; processes may be left over.
    Lost {
        /// PID of its first process, if there was one.
        pid: Option<i32>,
        /// Start time.
        started: Option<Timestamp>,
    },
}

/// How a container exited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerExit {
    /// Start time; `None` if the start failed.
    pub started: Option<Timestamp>,
    /// Exit time.
    pub finished: Timestamp,
    /// Exit code; 128 plus the signal number for a killed process.
    pub code: i32,
    /// Whether the OOM killer was active in its cgroup.
    pub oom: bool,
    /// `Completed`, `Error`, `OOMKilled` or `StartError`.
    pub reason: String,
    /// Why it could not be started.
    pub message: String,
}

/// Why a container could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// The exit code that the container gets.
    pub code: i32,
    /// The reason that it gets.
    pub reason: String,
    /// Text, as a container runtime reports it.
    pub message: String,
}

// === impl ContainerProcess ===

impl ContainerProcess {
    /// Moves command line and environment out of a bundle, which can then be written to disk.
    pub fn take_from(spec: &mut Spec) -> Self {
        let Some(process) = spec.process_mut() else { return Self::default() };
        let (args, env) = (process.args().clone(), process.env().clone());
        // The runtime requires the field.
        process.set_args(Some(Vec::new()));
        process.set_env(None);
        Self { args: args.unwrap_or_default(), env: env.unwrap_or_default() }
    }

    /// Names and values of the environment.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().filter_map(|entry| entry.split_once('='))
    }

    /// The last value of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables().filter(|(other, _)| *other == name).last().map(|(_, value)| value)
    }
}

impl fmt::Debug for ContainerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No values: this may be logged.
        f.debug_struct("ContainerProcess")
            .field("args", &self.args.len())
            .field("env", &self.env.len())
            .finish()
    }
}

// === impl StartError ===

impl StartError {
    /// Exit code of a container that could not be started.
    pub const CODE: i32 = 128;

    /// An error with the usual code and reason.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: Self::CODE, reason: "StartError".to_owned(), message: message.into() }
    }
}

// === impl ContainerExit ===

impl ContainerExit {
    /// The exit of a container that ran.
    pub fn ended(started: Timestamp, finished: Timestamp, code: i32, oom: bool) -> Self {
        let reason = match code {
            _ if oom => "OOMKilled",
            0 => "Completed",
            _ => "Error",
        };
        Self {
            started: Some(started),
            finished,
            code,
            oom,
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    /// The exit of a container that never ran.
    pub fn not_started(error: &StartError, finished: Timestamp) -> Self {
        Self {
            started: None,
            finished,
            code: error.code,
            oom: false,
            reason: error.reason.clone(),
            message: error.message.clone(),
        }
    }
}

/// The main function of a shim process. The first argument that is a subcommand is the one to run; the arguments before
/// it are needed to start further processes.
pub fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let subcommands = ["supervise", "create", "exec", "pause", "paused"];
    let Some(index) = args.iter().position(|arg| subcommands.contains(&arg.as_str())) else {
        print_error(format_args!(
            "shim: expected one of {} and a directory, got {args:?}",
            subcommands.join(", ")
        ));
        return ExitCode::from(2);
    };
    let [subcommand, dir, rest @ ..] = &args[index..] else {
        print_error(format_args!("shim: {} needs a directory", args[index]));
        return ExitCode::from(2);
    };
    let program = Program { path: "/proc/self/exe".into(), args: args[..index].to_vec() };
    let dir = Path::new(dir);
    match subcommand.as_str() {
        "supervise" => supervisor::run(dir, program),
        "create" => create::run(),
        "exec" => exec::run(),
        "pause" => pause_process::run(dir, &program, rest),
        _ => pause_process::run_init(dir),
    }
}

/// The program on a read-only mount, for processes that enter a container: it cannot be overwritten from there. The
/// descriptor must be kept until the program is started. If that is not possible, the kernel still protects a running
/// binary from writes.
pub(super) fn on_read_only_mount(program: Program) -> (Program, Option<OwnedFd>) {
    match sys::fd::read_only_mount(&program.path) {
        Ok(binary) => {
            let path = format!("/proc/self/fd/{}", binary.as_raw_fd()).into();
            (Program { path, args: program.args }, Some(binary))
        }
        Err(_) => (program, None),
    }
}

/// Prints an error to stderr: a supervisor's goes to a file beside its container, a command's to the container's
/// output.
pub(super) fn print_error(message: fmt::Arguments<'_>) {
    // Nothing may be listening.
    let _ = writeln!(io::stderr(), "{message}");
}
