//! The processes beside ours: one that supervises each container, and short-lived ones that make containers and start commands in
//! them.
//!
//! | process | what it does |
//! |---|---|
//! | `supervise DIR` | lives as long as its container: owns its output and input, writes its log, records how it ended. One thread, no runtime |
//! | `create DIR` | makes the container and starts it, then ends; at the level `process` it becomes the container's program |
//! | `exec DIR` | starts a command in the container, then ends |
//! | `pause DIR` | the first process of a pod whose containers share their processes |
//!
//! The process of the nodes only asks: [`Shim`] reads `state.json`, and speaks to the supervisor on `shim.sock`. It may end at any
//! moment and find everything again.

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

/// How a process of the shim is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The binary.
    pub path: PathBuf,
    /// What comes before the verb.
    pub args: Vec<String>,
}

/// What a supervisor is told about its container, beside the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    /// How well it is kept apart.
    pub level: Level,
    /// The pod that is named in events.
    pub pod_uid: String,
    /// The socket that takes events.
    pub events: PathBuf,
    /// The log file.
    pub log: PathBuf,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Whether it has input.
    pub stdin: bool,
    /// Whether input ends when the first who attached is gone.
    pub stdin_once: bool,
    /// How early the kernel kills it when memory runs out.
    pub oom_score_adj: Option<i64>,
    /// Its cgroup, below the mount of each controller.
    pub cgroup: Option<String>,
    /// The cgroup of the supervisor itself, below the mount of each controller; it is made where there is none. `None` is the one of
    /// whoever starts it. Only at the level `oci`.
    #[serde(default)]
    pub own_cgroup: Option<String>,
    /// Whether the program can gain no rights, at the level `process`; otherwise the bundle says so.
    #[serde(default)]
    pub no_new_privs: bool,
    /// The program, at the level `process`.
    pub process: Option<ProcessLaunch>,
}

/// A program that runs as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLaunch {
    /// Name and arguments.
    pub argv: Vec<String>,
    /// The whole environment, in order.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub cwd: PathBuf,
}

/// Where a container stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It was not started yet.
    Created,
    /// It runs.
    Running {
        /// Its first process.
        pid: i32,
        /// Since when.
        started: Timestamp,
    },
    /// It ended, or could not be started.
    Exited(Exit),
    /// Its supervisor is gone and could not tell how it ended: what is left of it has no owner.
    Lost {
        /// Its first process, where there was one.
        pid: Option<i32>,
        /// Since when it ran.
        started: Option<Timestamp>,
    },
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// When it was started; `None` where that failed.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Timestamp,
    /// The exit code; 128 plus the number for a process ended by a signal.
    pub code: i32,
    /// Whether the kernel killed for want of memory in it.
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
    /// In the words that a container runtime has for it.
    pub message: String,
}

// === impl StartError ===

impl StartError {
    /// The code of a container that could not be started.
    pub const CODE: i32 = 128;

    /// With the code and the reason that all have.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: Self::CODE, reason: "StartError".to_owned(), message: message.into() }
    }
}

// === impl Exit ===

impl Exit {
    /// The end of a container that ran.
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

    /// The end of a container that never ran.
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
