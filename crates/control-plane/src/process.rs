//! The process of a component.
//!
//! The handle is a plain `std` child, not tied to an async runtime: a shared control plane outlives the runtime of the test that
//! started it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};

/// Writes the pid file before the program runs, and does not run it when the cleanup process has already moved the folder away: a program
/// that runs is always one whose pid the cleanup process reads.
const LAUNCH: &str = r#"pid_file=$1; shift; echo $$ >"$pid_file" && [ -d "${pid_file%/*}" ] && exec "$@""#;

/// How many lines of a log an error shows.
const TAIL_LINES: usize = 20;
/// How much of a log is read to find its last lines; lines of the API server can be long.
const TAIL_BYTES: u64 = 64 * 1024;
/// Interval between two checks whether a process has ended.
const EXIT_POLL: Duration = Duration::from_millis(10);

/// The command line of a component.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) component: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) pid_file: PathBuf,
    pub(crate) log: PathBuf,
}

/// The running process of a component. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub(crate) struct ComponentProcess {
    component: &'static str,
    child: Child,
    pid_file: PathBuf,
    log: PathBuf,
    /// Where this run starts in the log.
    log_start: u64,
}

// === impl Launch ===

impl Launch {
    pub(crate) fn start(&self) -> Result<ComponentProcess> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(Error::file("open", &self.log))?;
        let log_start = log.metadata().map_err(Error::file("read", &self.log))?.len();
        let stderr = log.try_clone().map_err(Error::file("open", &self.log))?;
        let mut command = Command::new("sh");
        command
            .args(["-c", LAUNCH, "sh"])
            .arg(&self.pid_file)
            .arg(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr)
            // Ctrl-C at the terminal must not end components before the parent stops them.
            .process_group(0);
        for name in conflicting_variables() {
            command.env_remove(name);
        }
        let child = command.spawn().map_err(|source| Error::Spawn { component: self.component, source })?;
        Ok(ComponentProcess {
            component: self.component,
            child,
            pid_file: self.pid_file.clone(),
            log: self.log.clone(),
            log_start,
        })
    }
}

// === impl ComponentProcess ===

impl ComponentProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails when the component has ended.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        match self.try_wait() {
            Some(status) => Err(Error::Exited {
                component: self.component,
                status,
                log: self.log.clone(),
                tail: self.log_tail(),
            }),
            None => Ok(()),
        }
    }

    /// The error for a component that runs but is not ready in time.
    pub(crate) fn not_ready(&self, waited: Duration, seen: String) -> Error {
        let (component, log, tail) = (self.component, self.log.clone(), self.log_tail());
        Error::NotReady { component, waited, seen, log, tail }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process(Pid::from_child(&self.child), signal) {
            tracing::debug!(component = self.component, ?signal, %error, "signal not delivered");
        }
    }

    /// Sends SIGTERM, and SIGKILL when the component still runs after `grace`.
    pub(crate) async fn stop(mut self, grace: Duration) {
        let end = Instant::now() + grace;
        self.signal(Signal::TERM);
        // A paused process handles SIGTERM only after SIGCONT.
        self.signal(Signal::CONT);
        while Instant::now() < end {
            if self.try_wait().is_some() {
                return;
            }
            sleep(EXIT_POLL).await;
        }
        tracing::debug!(component = self.component, ?grace, "still running after the grace period: killed");
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        self.remove_pid_file();
        Some(status)
    }

    /// Another process may get the pid soon, and the cleanup process must not kill that one.
    fn remove_pid_file(&self) {
        if let Err(error) = std::fs::remove_file(&self.pid_file) {
            tracing::debug!(component = self.component, %error, "no pid file to remove");
        }
    }

    fn log_tail(&self) -> String {
        tail(&self.log, self.log_start)
            .unwrap_or_else(|error| format!("(cannot read {}: {error})", self.log.display()))
    }
}

impl Drop for ComponentProcess {
    fn drop(&mut self) {
        if self.try_wait().is_some() {
            return;
        }
        if self.child.kill().and_then(|()| self.child.wait().map(drop)).is_ok() {
            self.remove_pid_file();
        }
    }
}

/// Environment variables that would change how components behave: etcd reads its flags from `ETCD_*`, and a proxy breaks loopback
/// connections.
fn conflicting_variables() -> Vec<OsString> {
    let conflicts = |name: &str| {
        name.starts_with("ETCD_") || name.to_ascii_lowercase().ends_with("_proxy") || name == "KUBECONFIG"
    };
    std::env::vars_os().map(|(name, _)| name).filter(|name| conflicts(&name.to_string_lossy())).collect()
}

fn tail(log: &Path, start: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_its_last_lines_since_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let earlier = "an earlier run\n";
        let lines: Vec<String> = (0..50).map(|number| format!("line {number}")).collect();
        std::fs::write(&log, format!("{earlier}{}\n", lines.join("\n"))).unwrap();
        assert_eq!(tail(&log, earlier.len() as u64).unwrap(), lines[30..].join("\n"));

        std::fs::write(&log, format!("{earlier}only\n")).unwrap();
        assert_eq!(tail(&log, earlier.len() as u64).unwrap(), "only");
    }
}
