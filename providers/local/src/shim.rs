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

pub mod cgroup;
mod client;
mod console;
mod create;
mod exec;
mod executor;
mod log;
mod pause;
mod plain;
mod session;
mod state;
mod supervise;
mod verb;
mod wire;

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::level::Level;

pub use self::{
    client::Shim,
    pause::{pause, paused},
    plain::{plain_strays, start_ticks_of},
    verb::main,
};

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
pub struct Launch {
    /// How the container is isolated.
    pub level: Level,
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
    /// The program, at level `process`.
    pub process: Option<ProcessLaunch>,
}

/// A program that runs as a plain process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLaunch {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The complete environment, in order.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub cwd: PathBuf,
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
    Exited(Exit),
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
pub struct Exit {
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

// === impl StartError ===

impl StartError {
    /// Exit code of a container that could not be started.
    pub const CODE: i32 = 128;

    /// An error with the usual code and reason.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: Self::CODE, reason: "StartError".to_owned(), message: message.into() }
    }
}

// === impl Exit ===

impl Exit {
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
